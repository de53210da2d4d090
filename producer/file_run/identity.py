"""The names of a run, its requests and its result lines.

    run         <12 hex of the content><8 hex of chance>      content: input bytes, model and the like
    request     req_<run>_<line>, and -2, -3 … behind it where it had to be asked again
    result      batch_req_<run>_<line>…                        what `output.result_id` makes of it
    reply topic <prefix>.reply.run-<run>

Line numbers are physical ones. The content's part tells an input that was changed; the part of chance
keeps two runs over the same input apart, on a broker that remembers the first.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets

_CONTENT_HEX, _CHANCE_HEX = 12, 8
_RUN = re.compile(rf"[0-9a-f]{{{_CONTENT_HEX + _CHANCE_HEX}}}")
_RESULT = re.compile(rf"batch_req_({_RUN.pattern})_([0-9]{{1,15}})(?:-[0-9]{{1,6}})?")


def content_key(digest: bytes, model: str) -> str:
    """The part of a run's id that says which content it answers."""
    return hashlib.sha256(digest + os.fsencode(model)).hexdigest()[:_CONTENT_HEX]


def new_run(content: str) -> str:
    return content + secrets.token_hex(_CHANCE_HEX // 2)


def is_run(text: object) -> bool:
    return isinstance(text, str) and _RUN.fullmatch(text) is not None


def answers(run: str, content: str) -> bool:
    """Whether a run is one over this content."""
    return run.startswith(content)


def request_id(run: str, line: int, attempt: int = 1) -> str:
    return f"req_{run}_{line}" if attempt == 1 else f"req_{run}_{line}-{attempt}"


def read_result_id(result_id: str) -> tuple[str, int] | None:
    """Run and line number, or None for an id of somebody else's making."""
    match = _RESULT.fullmatch(result_id)
    return (match[1], int(match[2])) if match else None


def reply_topic(prefix: str, run: str) -> str:
    return f"{prefix}.reply.run-{run}"
