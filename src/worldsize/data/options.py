"""`options` of a workload, checked like every other field of a study."""

from __future__ import annotations

import difflib
import json
from typing import Self

from pydantic import ValidationError

from worldsize.errors import SpecError
from worldsize.frozen import Frozen
from worldsize.spec import WorkloadSpec


class Options(Frozen):
    @classmethod
    def of(cls, workload: WorkloadSpec) -> Self:
        try:
            return cls.model_validate_json(json.dumps(workload.options))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            rule = first["msg"][0].lower() + first["msg"][1:]
            if first["type"] == "extra_forbidden":
                near = difflib.get_close_matches(name, cls.model_fields, n=1)
                rule = f"unknown; did you mean {near[0]}?" if near else f"unknown; use {', '.join(cls.model_fields)}"
            raise SpecError(f"workload.options.{name}={first['input']!r} of {workload.name}: {rule}") from error
