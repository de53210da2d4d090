"""Streams one answer from `headrace up`: python examples/stream.py 127.0.0.1:50051 "Why is the sky blue?" """

import sys

import grpc

from headrace.v1 import inference_pb2 as pb
from headrace.v1.inference_pb2_grpc import InferenceStub

if len(sys.argv) != 3:
    sys.exit('usage: python examples/stream.py HOST:PORT "QUESTION"')
target, question = sys.argv[1:]
chat = pb.Chat(messages=[pb.ChatMessage(role="user", content=question)])
request = pb.GenerateRequest(request=pb.InferenceRequest(chat=chat))
try:
    for response in InferenceStub(grpc.insecure_channel(target)).Generate(request):
        print(response.event.delta.text, end="", flush=True)
except grpc.RpcError as error:
    sys.exit(f"{target}: {error.details()}; is `headrace up` running there?")
print()
