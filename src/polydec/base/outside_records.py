"""What typed records from outside have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictRecord(BaseModel):
    """A frozen record of plain types: nothing is converted, fields that are not named are ignored."""

    # what checks a record is made when one is first read: there are many kinds, and a model's files hold a few
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, defer_build=True)
