"""What stands around the events -> `Header`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kinetoscope.trace.captured import KEY
from kinetoscope.trace.readers._repair import Repairs, mend_text
from kinetoscope.trace.trace import DeviceProperties, Header

_KNOWN = frozenset({"traceEvents", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"})
_SCALAR = re.compile(r'"(\w+)"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|true|false|null)\s*[,}]')
_MAX_TEXT = 4000


def parse_frame(head: bytes, tail: bytes, repairs: Repairs) -> dict[str, Any]:
    """The top-level values before and after the events; of what is damaged, what can be read."""
    before = _parse(head.rstrip() + b'"":0}' if head.strip() else b"{}", repairs)
    after = tail.strip().lstrip(b",").strip()
    values = _parse(b"{" + after, repairs) if after else {}
    merged = {**values, **before}
    # A user's metadata may repeat a key of ours; the first of the two is the writer's own.
    merged.pop("", None)
    return merged


def _parse(text: bytes, repairs: Repairs) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _parse_damaged(text, repairs)
    return value if isinstance(value, dict) else {}


def _parse_damaged(text: bytes, repairs: Repairs) -> dict[str, Any]:
    local = Repairs()
    mended = mend_text(text, local)
    try:
        value = json.loads(mended, strict=False)
        repairs.merge(local)
    except (ValueError, RecursionError):
        repairs.add("broken_metadata", mended[:80])
        value = {}
        for key, scalar in _SCALAR.findall(mended):
            with suppress(ValueError):
                value.setdefault(key, json.loads(scalar, strict=False))
        value.update(_objects(mended))
    return value if isinstance(value, dict) else {}


def _objects(text: str) -> dict[str, Any]:
    """The two structured values that matter, wherever they stand in a damaged frame."""
    found: dict[str, Any] = {}
    decoder = json.JSONDecoder(strict=False)
    for key in ("distributedInfo", "deviceProperties"):
        match = re.search(rf'"{key}"\s*:\s*', text)
        if match:
            with suppress(ValueError):
                found[key] = decoder.raw_decode(text, match.end())[0]
    return found


def make_header(values: Mapping[str, Any], *, base_time_ns: int, vendor: str | None) -> Header:
    """The header of the top-level values; what has a wrong type counts as not recorded."""
    distributed = values.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    metadata = {k: v for k, v in values.items() if k not in _KNOWN and (k == KEY or _is_small(v))}
    if distributed:
        metadata["distributedInfo"] = distributed
    return Header(
        devices=_devices(values.get("deviceProperties")),
        rank=whole(distributed.get("rank")),
        world_size=whole(distributed.get("world_size")),
        backend=_text(distributed.get("backend")),
        torch=_torch(values),
        vendor=vendor,
        base_time_ns=base_time_ns,
        record_shapes=_flag(values, "record_shapes"),
        with_stack=_flag(values, "with_stack"),
        profile_memory=_flag(values, "profile_memory"),
        metadata=metadata,
    )


def _is_small(value: Any) -> bool:
    if isinstance(value, (str, int, float, bool)) or value is None:
        return not isinstance(value, str) or len(value) <= _MAX_TEXT
    return len(json.dumps(value, default=str)) <= _MAX_TEXT


def _devices(value: Any) -> tuple[DeviceProperties, ...]:
    entries = [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
    return tuple(_device(entry, index) for index, entry in enumerate(entries))


def _device(entry: Mapping[str, Any], index: int) -> DeviceProperties:
    number = whole(entry.get("id"))
    major, minor = whole(entry.get("computeMajor")), whole(entry.get("computeMinor"))
    return DeviceProperties(
        id=index if number is None else number,
        name=_text(entry.get("name")) or None,
        total_memory_bytes=whole(entry.get("totalGlobalMem")),
        compute_capability=None if major is None or minor is None else (major, minor),
        multiprocessors=whole(entry.get("numSms")),
    )


def _torch(values: Mapping[str, Any]) -> str | None:
    for key in ("pytorch_version", "torch_version", "PT_PROFILER_TORCH_VERSION", "torch"):
        if isinstance(values.get(key), str):
            return str(values[key])
    return None


def _flag(values: Mapping[str, Any], key: str) -> bool | None:
    """The writer sets a flag only when it is on; a file that sets none does not tell."""
    if key in values:
        return bool(values[key]) and values[key] != "0"
    written = {"record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules"}
    return False if written & values.keys() else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def whole(value: Any) -> int | None:
    """A whole number written as such or as a string; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*-?\d{1,18}\s*", value) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None
