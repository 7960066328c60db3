"""The rules about inference: what they take for a weight, a cache, a cold request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.rules.api import Hit, Outcome
from kinetoscope.rules.inference._requests import weight_shapes
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.torch_frames import serving_step

RULES = {rule.code: rule for rule in all_rules()}


def run(code: str, t: TraceBuilder, *, step_us: float) -> Outcome:
    analysis = Analysis(t.read(), AnalysisOptions(real_step_ns=int(step_us * 1000)))
    outcome = RULES[code].run(analysis)
    assert outcome.error is None
    return outcome


def hit_of_example(code: str, *, step_us: float) -> Hit:
    t = TraceBuilder()
    next(e.build for e in RULES[code].examples if e.fires)(t)
    (hit,) = run(code, t, step_us=step_us).hits
    return hit


def test_a_weight_is_what_layers_take_second_and_never_first() -> None:
    t = TraceBuilder().step(0, 100)
    t.op("aten::linear", 10, 5, dims=[[64, 256], [512, 256], [512]])
    t.op("aten::linear", 20, 5, dims=[[32, 32], [32, 32], [32]])  # square: input or weight?
    t.op("aten::matmul", 30, 5, dims=[[8, 64, 16], [8, 16, 64]])  # both are results
    assert weight_shapes(t.read()) == {(512, 256)}


def test_a_growing_cache_costs_what_is_not_new() -> None:
    hit = hit_of_example("IN605", step_us=1_000)
    values = {e.name: e.value for e in hit.evidence}
    assert values["copy_time"] == pytest.approx(4 * 100_000 * 5 / 6, rel=0.01)  # the first: no
    # Four copies of 100 us become writes of 2 us.
    assert hit.gain.high == pytest.approx(1_000 / (1_000 - 4 * 98), rel=0.05)


def test_training_with_cat_is_no_cache() -> None:
    t = TraceBuilder()
    next(e.build for e in RULES["IN605"].examples if e.fires)(t)
    t.annotation("Optimizer.step#SGD.step", 5_900, 50)
    assert run("IN605", t, step_us=1_000).status == "silent"


def test_convolutions_with_channels_last_or_of_1x1_are_left_alone() -> None:
    hit = hit_of_example("IN607", step_us=10_000)
    # Four convolutions of 2 ms of 10; 40 % of that at best.
    assert hit.gain.high == pytest.approx(10 / (10 - 0.4 * 8), rel=0.02)
    t = TraceBuilder(device=None)
    for step in range(3):
        t.step(step * 10_000, 10_000)
        t.op("aten::conv2d", step * 10_000 + 10, 9_000, dims=[[8, 64, 56, 56], [64, 64, 1, 1]])
    assert run("IN607", t, step_us=10_000).status == "silent"


def test_a_norm_after_a_convolution_with_a_bias_can_go() -> None:
    hit = hit_of_example("IN610", step_us=2_000)
    values = {e.name: e.value for e in hit.evidence}
    assert values["norm_time"] == 4 * 150_000
    assert values["convolutions_with_bias"] == 1.0
    # Four norms of 150 us of 1,960 us of device work.
    assert hit.gain.high == pytest.approx(2_000 / (2_000 - 600), rel=0.03)


def test_instance_norm_is_not_training_mode() -> None:
    t = TraceBuilder()
    for step in range(3):
        t.step(step * 1_000, 1_000)
        t.op("aten::linear", step * 1_000 + 10, 100, dims=[[64, 256], [256, 256]])
        values = ["", "", "", "", "", "True", "0.1", "1e-05", "True"]
        dims = [[4, 64, 8, 8], [64], [64], [], [], [], [], [], []]
        t.op("aten::batch_norm", step * 1_000 + 200, 500, dims=dims, concrete=values)
    assert run("IN611", t, step_us=1_000).status == "silent"


def test_batch_statistics_in_serving_are_an_error() -> None:
    t = TraceBuilder()
    for step in range(3):
        t.step(step * 1_000, 1_000)
        values = ["", "", "", "", "", "True", "0.1", "1e-05", "True"]
        dims = [[4, 64, 8, 8], [64], [64], [64], [64], [], [], [], []]
        t.op("aten::batch_norm", step * 1_000 + 200, 500, dims=dims, concrete=values)
    (hit,) = run("IN611", t, step_us=1_000).hits
    assert hit.keep  # whatever the time that it costs
    assert hit.at_least == "medium"


def test_on_a_cpu_statistics_are_most_of_a_long_batch_norm() -> None:
    """Steps of 10 ms with a norm of 4 ms and ten of 0.05 ms, of each of which the call stays."""
    t = TraceBuilder(device=None)
    values = ["", "", "", "", "", "True", "0.1", "1e-05", "True"]
    dims = [[4, 64, 8, 8], [64], [64], [64], [64], [], [], [], []]
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::batch_norm", at + 200, 4_000, dims=dims, concrete=values)
        for i in range(10):
            t.op("aten::batch_norm", at + 4_300 + 60 * i, 50, dims=dims, concrete=values)
        t.op("aten::mm", at + 5_000, 4_900, dims=[[64, 64], [64, 64]])
    gain = run("IN611", t, step_us=10_000).hits[0].gain
    left = [10 - 4 * long - 0.5 * short for long, short in ((0.4, 0), (0.85, 0.4), (0.95, 0.75))]
    wanted = [10 / ms for ms in left]
    assert [gain.low, gain.mid, gain.high] == pytest.approx(wanted, rel=0.01)


def test_moved_weights_gain_their_copies() -> None:
    hit = hit_of_example("IN620", step_us=4_000)
    values = {e.name: e.value for e in hit.evidence}
    assert values["weights_per_step"] == 4
    assert values["moved"] == 4 * (4 << 20)
    # Four times 500 us of host time.
    assert hit.gain.high == pytest.approx(4_000 / (4_000 - 2_000), rel=0.03)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785)", (False, True)),
        ("execute_8192_context_9(sq8155sk8430)_generation_37(sq37sk34489)", (True, True)),
        ("execute_context_1(888_788544)_generation_0(0)", (True, False)),
        ("step[DECODE bs=32]", (False, True)),
        ("step[EXTEND bs=1 toks=4096]", (True, False)),
        ("forward", None),
    ],
)
def test_marks_of_servers(name: str, kind: tuple[bool, bool] | None) -> None:
    assert serving_step(name) == kind


@pytest.mark.parametrize(
    ("between", "status"), [("mean", "fired"), ("select", "fired"), ("add", "silent")]
)
def test_a_queue_is_one_unless_the_answer_makes_the_next_input(between: str, status: str) -> None:
    """Layers that torch runs as one operator, and something on their result after each request."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 4_000
        t.step(at, 4_000)
        t.python("serve.py(7): answer", at + 1, 3_990)
        for i in range(8):
            begin = at + 10 + i * 490
            t.module("Encoder_0", begin, 400)
            for k in range(3):
                layer = "aten::_transformer_encoder_layer_fwd"
                t.op(layer, begin + 5 + 100 * k, 90, dims=[[1, 128, 512], [], [], [1536, 512]])
                t.kernel("gemm", begin + 40 + 100 * k, 5, launch_at=begin + 20 + 100 * k)
            t.op(f"aten::{between}", begin + 410, 10, dims=[[1, 128, 512], []])
            t.kernel("reduce_kernel", begin + 425, 3, launch_at=begin + 412)
    assert run("IN603", t, step_us=4_000).status == status


@pytest.mark.parametrize(
    ("between", "status"),
    [
        (([1, 7, 32], [1, 7, 32]), "silent"),  # the answer and the last input make the next one
        (([1, 7, 32], []), "fired"),  # the answer is scaled
        (([1, 64, 32], [1, 64, 32]), "fired"),  # two tensors of a size that only the layers have
    ],
)
def test_a_sampler_is_no_queue_whatever_its_model_reads_first(
    between: tuple[list[int], list[int]], status: str
) -> None:
    """A linear layer on a condition of 257 values, then convolutions on a plan of 7 x 32."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 4_000
        t.step(at, 4_000)
        t.python("arm.py(7): clean", at + 1, 3_990)
        for i in range(8):
            begin = at + 10 + i * 490
            t.module("Motion_0", begin, 400)
            t.op("aten::linear", begin + 5, 60, dims=[[1, 257], [640, 257], [640]])
            t.kernel("gemm", begin + 40, 5, launch_at=begin + 20)
            for k, (wide, made) in enumerate(((7, 64), (64, 64), (64, 7))):
                here = begin + 80 + 100 * k
                t.op("aten::conv1d", here, 60, dims=[[1, wide, 32], [made, wide, 3], [made]])
                t.kernel("conv", here + 40, 5, launch_at=here + 20)
            t.op("aten::add", begin + 410, 10, dims=list(between))
            t.kernel("add", begin + 425, 3, launch_at=begin + 412)
    assert run("IN603", t, step_us=4_000).status == status


@pytest.mark.parametrize(("takes", "status"), [(True, "fired"), (False, "silent")])
def test_a_model_that_adds_its_input_may_have_a_queue(takes: bool, status: str) -> None:
    """`x + net(x)` for each image of a batch, or for the last answer as a simulation does."""
    t = TraceBuilder()
    image = [1, 3, 64, 64]
    for step in range(4):
        at = step * 4_000
        t.step(at, 4_000)
        t.python("clean.py(7): clean", at + 1, 3_990)
        for i in range(8):
            begin = at + 10 + i * 490
            if takes:
                t.op("aten::unsqueeze", begin, 8, dims=[image[1:], []])
            t.module("Cleaner_0", begin + 10, 400)
            for k in range(3):
                here = begin + 20 + 110 * k
                t.op("aten::conv2d", here, 90, dims=[image, [3, 3, 3, 3], [3]])
                t.kernel("conv", here + 60, 5, launch_at=here + 20)
            t.op("aten::add", begin + 360, 20, dims=[image, image])
            t.kernel("add", begin + 370, 3, launch_at=begin + 365)
    assert run("IN603", t, step_us=4_000).status == status


@pytest.mark.parametrize(("zeros", "status"), [(True, "fired"), (False, "silent")])
def test_parts_of_a_stream_wait_for_the_state_before(zeros: bool, status: str) -> None:
    """A recurrent layer without a state makes one of zeros; else it has that of the last call."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 4_000
        t.step(at, 4_000)
        t.python("listen.py(7): listen", at + 1, 3_990)
        for i in range(8):
            begin = at + 10 + i * 490
            t.module("Listener_0", begin, 400)
            if zeros:
                t.op("aten::zeros", begin + 5, 20)
            t.op("aten::lstm", begin + 30, 100, dims=[[1, 20, 64], [], [], [], [], [], [], [], []])
            t.kernel("lstm", begin + 90, 5, launch_at=begin + 60)
            for k in range(2):
                here = begin + 140 + 100 * k
                t.op("aten::linear", here, 80, dims=[[1, 20, 64], [64, 64], [64]])
                t.kernel("gemm", here + 50, 5, launch_at=here + 20)
    assert run("IN603", t, step_us=4_000).status == status


def test_one_request_a_step_is_a_hint_only() -> None:
    t = TraceBuilder()
    for step in range(6):
        at = step * 400
        t.step(at, 400)
        t.module("Net_0", at + 10, 380)
        for k in range(3):
            t.op("aten::linear", at + 20 + 120 * k, 100, dims=[[1, 256], [256, 256], [256]])
            t.kernel("gemm", at + 90 + 120 * k, 5, launch_at=at + 60 + 120 * k)
    (hit,) = run("IN603", t, step_us=400).hits
    assert (hit.explains, hit.at_most) == (False, "low")


def test_on_a_cpu_a_batch_saves_calls_and_no_work() -> None:
    """Twelve requests of 500 us, 300 us of it in products of 100 us each."""
    t = TraceBuilder()
    t.python("serve.py(7): answer", 1, 6_100)
    for request in range(12):
        at = request * 500
        t.step(at, 500)
        t.module("Net_0", at + 10, 480)
        for k in range(3):
            t.op("aten::linear", at + 20 + 150 * k, 100, dims=[[1, 256], [256, 256], [256]])
    gain = run("IN603", t, step_us=500).hits[0].gain
    steady = 12 * 500 / (500 + 11 * 300)  # at worst and likely all products stay
    assert gain.low == pytest.approx(steady, rel=0.02)
    assert gain.mid == pytest.approx(steady, rel=0.02)
    assert gain.high == pytest.approx(12, rel=0.02)  # at best nothing is work


def _answer(t: TraceBuilder, begin: float, looked_up: int, query: int, keys: int) -> None:
    """A model of two layers with an embedding, called with one sequence."""
    t.module("Decoder_0", begin, 400)
    t.op("aten::embedding", begin + 5, 20, dims=[[50_000, 512], [1, looked_up], [], [], []])
    for k in range(2):
        at = begin + 40 + 150 * k
        t.op("aten::linear", at, 40, dims=[[1, looked_up, 512], [1536, 512], []])
        t.kernel("gemm", at + 30, 5, launch_at=at + 10)
        heads = [[1, 8, query, 64], [1, 8, keys, 64], [1, 8, keys, 64]]
        t.op("aten::scaled_dot_product_attention", at + 50, 40, dims=heads)
        t.kernel("flash", at + 80, 5, launch_at=at + 60)
    t.op("aten::argmax", begin + 420, 20, dims=[[1, 50_000], [], []])
    t.kernel("reduce_kernel", begin + 435, 3, launch_at=begin + 425)


@pytest.mark.parametrize(
    ("lengths", "status"),
    [
        (lambda i: (1, 1, 60 + i), "silent"),  # one token each, with a cache
        (lambda i: (60 + i, 60 + i, 60 + i), "silent"),  # the sequence again, one token longer
        (lambda i: (60 + 7 * i % 40, 60 + 7 * i % 40, 60 + 7 * i % 40), "fired"),  # other texts
    ],
)
def test_tokens_of_one_sequence_are_no_queue(
    lengths: Callable[[int], tuple[int, int, int]], status: str
) -> None:
    t = TraceBuilder()
    for step in range(4):
        t.step(step * 4_000, 4_000)
        t.python("serve.py(7): answer", step * 4_000 + 1, 3_990)
        for i in range(8):
            _answer(t, step * 4_000 + 10 + i * 490, *lengths(8 * step + i))
    assert run("IN603", t, step_us=4_000).status == status


def test_a_written_out_loss_gains_what_the_librarys_does_not_do() -> None:
    """8192 x 48000: log-softmax and its backward take 3 of 10 ms, two products of the program 2."""
    t, shape = TraceBuilder(), [8192, 48_000]
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        names = ("_log_softmax", "mul", "mul", "_log_softmax_backward_data")
        for i, (name, dur) in enumerate(zip(names, (1_500, 1_000, 1_000, 1_500), strict=True)):
            begin = at + 50 + (0, 1_500, 2_500, 3_500)[i]
            t.op(f"aten::{name}", at + 5 + 8 * i, 7, dims=[shape, shape])
            t.kernel("elementwise_kernel", begin, dur, launch_at=at + 6 + 8 * i)
        t.op("aten::mm", at + 40, 5, dims=[[8192, 1024], [1024, 48_000]])
        t.kernel("nvjet_sm90_tst", at + 5_050, 4_940, launch_at=at + 42)
        t.sync(at + 48, 9_945)
    gain = run("CP220", t, step_us=10_000).hits[0].gain
    assert gain.mid == pytest.approx(10 / 8, rel=0.02)
    assert gain.low == pytest.approx(10 / 9, rel=0.02)
    assert gain.high == pytest.approx(10 / (5 + 5 * 0.25), rel=0.02)


def _regrown(
    *,
    sizes: list[int],
    texts: int = 1,
    product: str = "aten::addmm",
    feed: str = "cat",
    cached_part: int = 0,
    width: int = 512,
) -> TraceBuilder:
    """Rounds of a product of `texts * size` rows in 1 ms, and what makes the next round longer."""
    t = TraceBuilder()
    t.step(0, 40_000)
    device = 50.0
    for index, size in enumerate(sizes):
        at = 100.0 * index
        dims = [[texts * size, width], [width, width]]
        t.op(product, at + 10, 10, dims=[[width], *dims] if product == "aten::addmm" else dims)
        t.kernel("sm90_gemm", device, 1_000, launch_at=at + 12)
        device += 1_000
        if cached_part:  # products of new positions only
            t.op("aten::mm", at + 30, 10, dims=[[texts, width], [width, 4 * width]])
            t.kernel("sm90_gemm", device, cached_part, launch_at=at + 32)
            device += cached_part
        if feed == "cat":
            t.op("aten::cat", at + 50, 10, dims=[[[texts, size, 3], [texts, 1, 3]], []])
            t.kernel("CatArrayBatchedCopy", device, 5, launch_at=at + 52)
        elif feed:
            t.op(f"aten::{feed}", at + 50, 10, dims=[[texts, 32_000], []])
            t.kernel("reduce_kernel", device, 5, launch_at=at + 52)
        device += 5
    t.sync(1_000, device - 1_000)
    t.step(40_000, 10)
    return t


@pytest.mark.parametrize(
    "program",
    [
        _regrown(sizes=[100, 101, 102, 103, 104, 105], texts=8),  # forecasts joined as floats
        _regrown(sizes=[64, 65, 66, 67, 68], feed="multinomial", product="aten::mm"),
        # An encoder that hears another four frames each time.
        _regrown(sizes=[400, 404, 408, 412, 416, 420], feed="argmax", texts=2),
        # Two questions, one after the other.
        _regrown(sizes=[32, 33, 34, 35, 36, 90, 91, 92, 93, 94]),
    ],
    ids=["forecast", "sampled", "frames", "twice"],
)
def test_a_prefix_that_is_computed_again_is_seen(program: TraceBuilder) -> None:
    outcome = run("IN622", program, step_us=40_000)
    assert outcome.status == "fired"


@pytest.mark.parametrize(
    "program",
    [
        _regrown(sizes=[1, 1, 1, 1, 1, 1], texts=8),  # with a cache
        _regrown(sizes=[100, 117, 125, 160, 161, 200]),  # batches sorted by length
        _regrown(sizes=[100, 101, 102, 103, 104, 105], feed=""),  # nothing feeds back
        # Keys and values are expanded from a cache; what is new has most of the work.
        _regrown(sizes=[100, 101, 102, 103, 104, 105], texts=8, cached_part=2_000),
        _regrown(sizes=[10, 20, 30, 40, 50, 60]),  # a search for the largest batch
    ],
    ids=["cached", "sorted", "independent", "latent", "search"],
)
def test_other_growth_is_no_prefix(program: TraceBuilder) -> None:
    assert run("IN622", program, step_us=40_000).status == "silent"


def test_a_cache_leaves_the_first_round_and_reads_weights_in_the_others() -> None:
    hit = hit_of_example("IN622", step_us=10_000)
    values = {e.name: e.value for e in hit.evidence}
    assert values["rounds"] == 6
    # Five later rounds: products of 1.5 ms, joins of 5 us. One position of 512 to 517 is new.
    assert values["time_in_later_rounds"] == pytest.approx(5 * 1_505_000, rel=0.01)
    assert values["known_part"] == pytest.approx(1 - 1 / 515, abs=1e-3)
    # 4 MiB of weights at 40 % of an H100's 3.35 TB/s take 3.1 us, a join 2.5 us; what chooses the
    # token stays.
    after = 1_500 + 6 * 10 + 5 + 5 * (3.1 + 2.5)
    before = 6 * 1_515
    assert hit.gain.mid == pytest.approx(10_000 / (10_000 - before + after), rel=0.02)


def test_work_between_two_copies_is_told_once() -> None:
    """Scores come to the host, 7 ms of NumPy, and what it made of them goes back."""
    t = TraceBuilder()
    for request in range(4):
        at = request * 10_000
        t.step(at, 10_000)
        t.kernel("conv", at + 100, 1_000, launch_at=at + 50)
        t.op("aten::to", at + 150, 1_260)
        t.copy("DtoH Pageable", 4 << 20, at + 1_100, 300, launch_at=at + 160, launch_dur=1_245)
        t.python("serve.py(30): shortlist", at + 1_500, 7_400)
        t.op("aten::to", at + 9_000, 40)
        t.copy("HtoD Pageable", 1 << 20, at + 9_040, 90, launch_at=at + 9_010)
        t.kernel("gemm", at + 9_200, 500, launch_at=at + 9_150)
    (hit,) = run("IN612", t, step_us=10_000).hits
    assert "results of each request from the device" in hit.message


@pytest.mark.parametrize(("device", "least", "most"), [(False, 1.02, 1.1), (True, 1.3, 2.5)])
def test_the_fused_encoder_layer_saves_launches_and_no_arithmetic(
    device: bool, least: float, most: float
) -> None:
    """Layers of 900 us: launches of short kernels on a device, products on a processor."""
    t = TraceBuilder()
    for request in range(4):
        at = request * 10_000
        t.step(at, 10_000)
        for layer in range(10):
            begin = at + 10 + 950 * layer
            t.module(f"TransformerEncoderLayer_{layer}", begin, 900)
            for op in range(8):
                start = begin + 10 + 110 * op
                t.op("aten::linear", start, 100, seq=request * 100 + layer * 8 + op)
                if device:
                    t.kernel("gemm", start + 60, 5, launch_at=start + 50)
    hit = run("IN601", t, step_us=10_000).hits[0]
    assert least <= hit.gain.mid <= most
