"""Which device file belongs to a device of the recording.

The name decides, longest pattern first; devices that share a name (A100 with 40 or 80 GB, H100 SXM
or PCIe) are told apart by multiprocessors and memory. What is left over is no device we know: a
wrong peak is worse than none.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from kinetoscope.errors import FormatError, InputNotFoundError
from kinetoscope.metrics.hardware.peaks import Peaks
from kinetoscope.metrics.precision import Math
from kinetoscope.trace.trace import DeviceProperties, Header

_GIB = 2**30
_GENERIC_NAME = re.compile(r"((AMD|ATI)?\s*Radeon Graphics)?", re.I)
_MEMORY_TOLERANCE = 0.12
"""Nominal against reported memory: firmware and ECC take up to a tenth."""
_PARTITION = 0.8
"""Below this share of the multiprocessors or the memory, a device is a part of a whole one."""

_Rate = Annotated[float, msgspec.Meta(gt=0)]
_UNITS = {math.name.lower(): math for math in Math if math is not Math.UNKNOWN}


class _DeviceFile(msgspec.Struct, forbid_unknown_fields=True):
    """One TOML file.

    `evidence_of` lists the values whose evidence differs from `evidence`. `size_tells` is false
    when another device has as many multiprocessors and as much memory.
    """

    name: str
    bandwidth_gbps: _Rate
    tflops: dict[str, _Rate]
    patterns: list[str] = []
    multiprocessors: int | None = None
    memory_gib: _Rate | None = None
    link: str | None = None
    link_gbps: _Rate | None = None
    h2d_gbps: _Rate | None = None
    achievable_tflops: dict[str, _Rate] = {}
    source: str = ""
    evidence: Literal["v", "m"] = "m"
    evidence_of: dict[str, Literal["v", "m"]] = {}
    size_tells: bool = True


def load_peaks(path: str | Path) -> Peaks:
    """Read the peaks of a device from a file of the user's (TOML, or JSON by its ending).

    Raises:
        InputNotFoundError: no such file.
        FormatError: not such a file; the message names the field.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise InputNotFoundError(f"{path} cannot be read: {exc.strerror}") from exc
    return _peaks(_decode(data, path.name))


def peaks_of(header: Header, device: int) -> Peaks | None:
    """The peaks of one device of a recording; None when the header does not say what it is.

    Args:
        header: the recording's header.
        device: device index as in the event table.
    """
    properties = next((d for d in header.devices if d.id == device), None)
    if properties is None and header.devices and _alike(header.devices):
        # Visible and physical numbers may differ; with one sort of device it does not matter.
        properties = header.devices[0]
    return None if properties is None else _find(properties)


def _alike(devices: tuple[DeviceProperties, ...]) -> bool:
    """Whether all devices are of one sort."""
    return len({(d.name, d.multiprocessors) for d in devices}) == 1


def _find(device: DeviceProperties) -> Peaks | None:
    name = device.name or ""
    if _GENERIC_NAME.fullmatch(name.strip()):
        found = _by_size(device)
    else:
        found = _nearest(_by_name(name), device)
    return None if found is None else _fit(found, device)


def _by_name(name: str) -> list[_DeviceFile]:
    """The devices whose matching pattern is the longest."""
    hits = [
        (len(pattern), file)
        for file, patterns in _patterns().items()
        for pattern in patterns
        if re.search(pattern, name, re.I)
    ]
    longest = max((length for length, _ in hits), default=0)
    return [_device(file) for length, file in hits if length == longest]


def _by_size(device: DeviceProperties) -> _DeviceFile | None:
    """The only device with this many multiprocessors and this much memory, else None.

    ROCm calls every device it has no table entry for "AMD Radeon Graphics", or nothing at all.
    """
    found = [
        file
        for file in _devices()
        if "AMD" in file.name
        and file.size_tells
        and file.multiprocessors == device.multiprocessors
        and _same_memory(file, device)
    ]
    return found[0] if len(found) == 1 else None


def _same_memory(file: _DeviceFile, device: DeviceProperties) -> bool:
    if file.memory_gib is None or device.total_memory_bytes is None:
        return False
    return abs(device.total_memory_bytes / _GIB / file.memory_gib - 1) <= _MEMORY_TOLERANCE


def _nearest(files: list[_DeviceFile], device: DeviceProperties) -> _DeviceFile | None:
    """Of devices with one name the one whose size fits; None when the size does not tell."""
    if len(files) <= 1:
        return files[0] if files else None
    if device.multiprocessors is not None:
        exact = [f for f in files if f.multiprocessors == device.multiprocessors]
        files = exact or files
    if len(files) > 1 and device.total_memory_bytes is not None:
        files = [f for f in files if _same_memory(f, device)]
    return files[0] if len(files) == 1 else None


def _fit(file: _DeviceFile, device: DeviceProperties) -> Peaks:
    """Scale the whole device's peaks to the partition (MIG, CPX) that was recorded.

    Arithmetic goes with the multiprocessors, bandwidth with the memory.
    """
    peaks = _peaks(file)
    scale, share = 1.0, 1.0
    if device.multiprocessors and peaks.multiprocessors:
        scale = min(device.multiprocessors / peaks.multiprocessors, 1.0)
    if device.total_memory_bytes and peaks.memory_gib:
        share = min(device.total_memory_bytes / _GIB / peaks.memory_gib, 1.0)
    if share >= _PARTITION:
        share = 1.0
    if scale == 1.0 and share == 1.0:
        return peaks
    return replace(
        peaks,
        tflops={math: scale * rate for math, rate in peaks.tflops.items()},
        achievable_tflops={math: scale * rate for math, rate in peaks.achievable_tflops.items()},
        bandwidth_gbps=share * peaks.bandwidth_gbps,
        multiprocessors=device.multiprocessors or peaks.multiprocessors,
        scale=scale,
    )


def _peaks(file: _DeviceFile) -> Peaks:
    fields = {"bandwidth_gbps", "link_gbps", "h2d_gbps", *file.tflops}
    evidence = {name: file.evidence_of.get(name, file.evidence) for name in fields}
    return Peaks(
        name=file.name,
        tflops=_rates(file.tflops, file.name),
        bandwidth_gbps=file.bandwidth_gbps,
        multiprocessors=file.multiprocessors,
        memory_gib=file.memory_gib,
        link=file.link,
        link_gbps=file.link_gbps,
        h2d_gbps=file.h2d_gbps,
        achievable_tflops=_rates(file.achievable_tflops, file.name),
        source=file.source,
        unchecked=frozenset(name for name, how in evidence.items() if how == "m"),
    )


def _rates(table: dict[str, float], name: str) -> dict[Math, float]:
    unknown = sorted(set(table) - set(_UNITS))
    if unknown:
        raise FormatError(
            f"{name}: no such arithmetic unit: {', '.join(unknown)}",
            hint=f"Known are {', '.join(_UNITS)}.",
        )
    return {_UNITS[unit]: rate for unit, rate in table.items()}


_PATTERNS_LINE = re.compile(rb"^patterns = \[(.*)\]$", re.M)
_PATTERN = re.compile(rb"'([^']*)'")


@cache
def _patterns() -> dict[str, tuple[str, ...]]:
    """Name patterns of each device file; the files are decoded only when they are needed."""
    folder = resources.files(__package__)
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    found = {}
    for file in files:
        line = _PATTERNS_LINE.search(file.read_bytes())
        found[file.name] = tuple(p.decode() for p in _PATTERN.findall(line[1])) if line else ()
    return found


@cache
def _device(name: str) -> _DeviceFile:
    return _decode(resources.files(__package__).joinpath(name).read_bytes(), name)


def _devices() -> tuple[_DeviceFile, ...]:
    """All device files of the package."""
    return tuple(_device(name) for name in _patterns())


def _decode(data: bytes, name: str) -> _DeviceFile:
    decode = msgspec.json.decode if name.endswith(".json") else msgspec.toml.decode
    try:
        return decode(data, type=_DeviceFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise FormatError(
            f"{name} does not describe a device: {exc}",
            hint="It needs at least `name`, `bandwidth_gbps` and a table `tflops`.",
        ) from exc
