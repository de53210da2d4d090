"""Kills the consumer in the middle of its answer, and reads on: python examples/survive.py ready.json

`ready.json` is what `headrace up --consumers 2 --lease 5 --ready-file ready.json …` wrote.
"""

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import grpc

from headrace.v1 import inference_pb2 as pb
from headrace.v1.inference_pb2_grpc import InferenceStub

KILL_AFTER = 40

if len(sys.argv) != 2:
    sys.exit("usage: python examples/survive.py READY_FILE")
try:
    target = json.loads(Path(sys.argv[1]).read_text())["grpc"]
except (OSError, ValueError, KeyError, TypeError) as error:
    sys.exit(f"{sys.argv[1]} is no ready file of `headrace up` ({error}); is it running?")
chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Tell me about the sea.")])
params = pb.SamplingParams(max_tokens=120, temperature=0)
request = pb.GenerateRequest(request=pb.InferenceRequest(chat=chat, sampling_params=params))
text, tokens, consumer, killed, pauses = "", 0, 0, False, [time.monotonic()]
try:
    for response in InferenceStub(grpc.insecure_channel(target)).Generate(request):
        event = response.event
        match event.WhichOneof("kind"):
            case "started":
                print(f"started on {event.started.consumer}, {event.started.kept} tokens kept")
                consumer = int(event.started.consumer.split("-")[-2])  # host-pid-nonce
            case "delta":
                text += event.delta.text
                tokens += len(event.delta.token_ids)
                pauses.append(time.monotonic())
                if tokens >= KILL_AFTER and not killed:
                    killed = True
                    os.kill(consumer, signal.SIGKILL)
                    print(f"killed {consumer} after {tokens} tokens")
            case "finished":
                pause = max(after - before for before, after in itertools.pairwise(pauses))
                print(f"finished: {tokens} tokens, longest pause {pause:.1f} s")
            case "failed":
                sys.exit(event.failed.message)
except grpc.RpcError as error:
    sys.exit(f"{target}: {error.details()}; is `headrace up` running there?")
print(text)
