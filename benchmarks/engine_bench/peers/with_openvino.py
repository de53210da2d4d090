"""OpenVINO GenAI, its continuous batching pipeline."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import openvino
import openvino_genai
from obeying import Answer, Row, obey, parser


def load(options: argparse.Namespace) -> Answer:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 2  # GiB
    scheduler.max_num_seqs = options.slots
    scheduler.max_num_batched_tokens = options.step_budget
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_PRECISION_HINT": options.precision, "INFERENCE_NUM_THREADS": options.threads}
    if options.cache_precision:
        properties["KV_CACHE_PRECISION"] = options.cache_precision
    model = str(options.model)
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def answer(rows: list[Row]) -> int:
        handles = [
            pipeline.add_request(number, openvino.Tensor(np.array([row.prompt], np.int64)), forced(row))
            for number, row in enumerate(rows)
        ]
        while pipeline.has_non_finished_requests():
            pipeline.step()
        return sum(len(handle.read_all()[0].generated_ids) for handle in handles)

    return answer


def forced(row: Row) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = row.tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


if __name__ == "__main__":
    options = parser()
    options.add_argument("--precision", required=True, help="in which it computes")
    options.add_argument("--cache-precision", help="of the KV cache; its own default if not given")
    obey(options.parse_args(), load)
