#!/usr/bin/env bash
# Generates the Python code of the contracts; a test compares what is committed with what this makes.
set -eu
out=$(realpath -m "${1:-$(dirname "$0")}")
cd "$(dirname "$0")"
mkdir -p "$out"
"${PYTHON:-python}" -m grpc_tools.protoc -I. --python_out="$out" --pyi_out="$out" \
  headrace/v1/events.proto headrace/v1/inference.proto
"${PYTHON:-python}" -m grpc_tools.protoc -I. --grpc_python_out="$out" headrace/v1/inference.proto
