"""The page about parameters names each one that there is."""

from pathlib import Path

from headrace.broker.lines.request import Sampling
from headrace.gpu_engine.api import SamplingParams

PAGE = (Path(__file__).parents[3] / "docs" / "parameters.md").read_text()


def test_the_page_names_every_parameter_of_a_body_and_of_the_python_interface() -> None:
    names = {*Sampling.__struct_fields__, *SamplingParams.__struct_fields__}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
