"""Which peaks a device of the header gets, and what its file must hold."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kinetoscope.errors import FormatError, InputNotFoundError
from kinetoscope.metrics.hardware import load_peaks, lookup, peaks_of
from kinetoscope.metrics.hardware.peaks import Peaks
from kinetoscope.metrics.precision import Math
from kinetoscope.trace.trace import DeviceProperties, Header

_FOLDER = Path(peaks_of.__code__.co_filename).parent
_FILES = sorted(_FOLDER.glob("*.toml"))
_GIB = 2**30


def _find(name: str | None, units: int | None, memory: float | None) -> Peaks | None:
    total = None if memory is None else int(memory)
    device = DeviceProperties(0, name, total, None, units)
    return peaks_of(Header(devices=(device,)), 0)


@pytest.mark.parametrize(
    ("name", "units", "memory", "expected"),
    [
        ("NVIDIA H200", 132, 150_109_880_320, "NVIDIA H200 SXM"),
        ("NVIDIA H200 NVL", 132, 150_109_880_320, "NVIDIA H200 NVL"),
        ("NVIDIA H100 80GB HBM3", 132, 85_018_279_936, "NVIDIA H100 SXM5"),
        ("NVIDIA H100 PCIe", 114, 85_018_279_936, "NVIDIA H100 PCIe"),
        ("NVIDIA H100", 114, 85_018_279_936, "NVIDIA H100 PCIe"),
        ("NVIDIA H100", 132, 85_018_279_936, "NVIDIA H100 SXM5"),
        ("NVIDIA A100-PG509-200", 108, 42_297_524_224, "NVIDIA A100 40 GB"),
        ("NVIDIA A100-SXM4-40GB", 108, None, "NVIDIA A100 40 GB"),
        ("NVIDIA A100-SXM4-80GB", 108, 85_000_000_000, "NVIDIA A100 80 GB SXM"),
        ("NVIDIA A100 80GB PCIe", 108, 85_000_000_000, "NVIDIA A100 80 GB PCIe"),
        ("NVIDIA B200", 148, 191_503_138_816, "NVIDIA B200"),
        ("Tesla V100-SXM2-32GB", 80, 34_079_637_504, "NVIDIA V100 SXM2"),
        ("Tesla V100-PCIE-16GB", 80, 17_000_000_000, "NVIDIA V100 PCIe"),
        ("Tesla T4", 40, 15_600_000_000, "NVIDIA T4"),
        ("NVIDIA A10", 72, 24_000_000_000, "NVIDIA A10"),
        ("NVIDIA A10G", 80, 24_000_000_000, "NVIDIA A10G"),
        ("NVIDIA L4", 58, 24_000_000_000, "NVIDIA L4"),
        ("NVIDIA L40S", 142, 48_000_000_000, "NVIDIA L40S"),
        ("NVIDIA GeForce RTX 4090", 128, 25_000_000_000, "NVIDIA GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 3080", 68, 10_500_000_000, "NVIDIA GeForce RTX 3080"),
        ("NVIDIA GeForce RTX 4080", 76, 17_000_000_000, "NVIDIA GeForce RTX 4080"),
        ("NVIDIA GeForce RTX 4080 SUPER", 80, 17_000_000_000, "NVIDIA GeForce RTX 4080 SUPER"),
        ("NVIDIA GeForce RTX 4070 Ti", 60, 12_800_000_000, "NVIDIA GeForce RTX 4070 Ti"),
        ("AMD Instinct MI210", 104, 68_702_699_520, "AMD Instinct MI210"),
        ("AMD Instinct MI300X VF", 304, 205_571_227_648, "AMD Instinct MI300X"),
        ("AMD Radeon Graphics", 304, 192 * _GIB, "AMD Instinct MI300X"),
        ("AMD Radeon Graphics", 304, 256 * _GIB, "AMD Instinct MI325X"),
        ("", 304, 206_141_652_992, "AMD Instinct MI300X"),
    ],
)
def test_known_devices(name: str, units: int, memory: float, expected: str) -> None:
    found = _find(name, units, memory)
    assert found is not None
    assert found.name == expected
    assert found.scale == 1.0


@pytest.mark.parametrize(
    ("name", "units", "memory"),
    [
        ("NVIDIA GH200 480GB", 132, 100e9),
        ("NVIDIA L40", 142, 48e9),
        ("NVIDIA GeForce RTX 3090 Ti", 84, 24e9),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, 16e9),
        ("AMD Radeon Graphics", 104, 64 * _GIB),  # MI210 or a half of MI250
        ("AMD Radeon Graphics", 256, 288 * _GIB),  # MI350X or MI355X
        ("AMD Radeon Graphics", None, None),
        ("NVIDIA A100", 108, None),  # 40 or 80 GB
        ("", 132, 150e9),
        (None, None, None),
    ],
)
def test_nothing_is_guessed(name: str | None, units: int | None, memory: float | None) -> None:
    assert _find(name, units, memory) is None


def test_a_slice_of_a_device_has_its_share() -> None:
    found = _find("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, 20 * _GIB)
    assert found is not None
    assert found.scale == pytest.approx(42 / 108)
    assert found.tflops[Math.BF16] == pytest.approx(312 * 42 / 108)
    assert found.bandwidth_gbps == pytest.approx(1555 / 2)


def test_the_device_is_found_by_its_number() -> None:
    h200 = DeviceProperties(0, "NVIDIA H200", 150_109_880_320, None, 132)
    t4 = DeviceProperties(1, "Tesla T4", 15_600_000_000, None, 40)
    both = Header(devices=(h200, t4))
    first, second = peaks_of(both, 0), peaks_of(both, 1)
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("NVIDIA H200 SXM", "NVIDIA T4")
    assert peaks_of(both, 2) is None
    assert peaks_of(Header(), 0) is None
    alike = peaks_of(Header(devices=(h200,)), 5)
    assert alike is not None
    assert alike.name == "NVIDIA H200 SXM"


def test_ridge_and_replacements() -> None:
    h200, t4 = _find("NVIDIA H200", 132, 150e9), _find("Tesla T4", 40, 15.6e9)
    assert h200 is not None
    assert t4 is not None
    assert h200.ridge(Math.BF16) == pytest.approx(206, abs=0.5)
    assert t4.flop_per_ns(Math.FP16) == 65_000
    assert t4.flop_per_ns(Math.BF16) == 8_100  # no unit for it
    assert t4.flop_per_ns(Math.TF32) == 8_100
    assert h200.flop_per_ns(Math.UNKNOWN) == 0


@pytest.mark.parametrize("path", _FILES, ids=lambda p: p.stem)
def test_device_files_are_complete_and_plausible(path: Path) -> None:
    peaks = load_peaks(path)
    assert peaks.source
    assert peaks.multiprocessors
    assert Math.FP32 in peaks.tflops
    assert 300 <= peaks.bandwidth_gbps <= 8000
    half = peaks.tflops.get(Math.FP16, 0)
    assert 1 <= half / peaks.tflops[Math.FP32] <= 40
    assert half == peaks.tflops.get(Math.BF16, half)
    for math, rate in peaks.achievable_tflops.items():
        assert rate < peaks.tflops[math]
    # A pattern in single quotes holds backslashes as they are; a typo would be silent.
    patterns = msgspec.toml.decode(path.read_bytes())["patterns"]
    assert patterns


def test_all_rows_of_the_table_are_there() -> None:
    assert len(_FILES) >= 24


def test_own_file(tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text('name = "X1"\nbandwidth_gbps = 1000\n[tflops]\nbf16 = 500\nfp32 = 50\n')
    json = tmp_path / "mine.json"
    json.write_text('{"name": "X1", "bandwidth_gbps": 1000, "tflops": {"bf16": 500, "fp32": 50}}')
    assert load_peaks(toml) == load_peaks(json)
    assert load_peaks(toml).flop_per_ns(Math.BF16) == 500_000
    assert load_peaks(toml).link_gbps is None
    assert "bf16" in load_peaks(toml).unchecked


@pytest.mark.parametrize(
    "text",
    [
        "name = ",
        'name = "X1"\n[tflops]\nbf16 = 5\n',
        'name = "X1"\nbandwidth_gbps = 0\n[tflops]\nbf16 = 5\n',
        'name = "X1"\nbandwidth_gbps = 1\n[tflops]\nbf17 = 5\n',
        'name = "X1"\nbandwidth_gbps = 1\nbandwith = 2\n[tflops]\nbf16 = 5\n',
    ],
)
def test_own_files_that_are_wrong_say_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(FormatError):
        load_peaks(path)


def test_own_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError):
        load_peaks(tmp_path / "no.toml")


def test_patterns_are_read_without_decoding_the_files() -> None:
    """The quick look at the pattern lines sees what decoding sees."""
    quick = lookup._patterns()
    assert {name: tuple(lookup._device(name).patterns) for name in quick} == quick
    assert all(quick.values())


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_every_device_file_says_where_its_numbers_are_from(path: Path) -> None:
    assert "https://" in load_peaks(path).source
