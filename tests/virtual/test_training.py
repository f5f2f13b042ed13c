from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoaccum.virtual import VirtualGpu

from .conftest import GIB, GPU, Run

pytestmark = pytest.mark.gpu
MIB = 1 << 20

STEP = """
def step(model, *shape, dtype=None):
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        out = model(torch.randn(*shape).cuda())
    out = out[0] if isinstance(out, tuple) else out
    out.float().square().mean().backward()
    missing = sum(p.grad is None for p in model.parameters())
    optimizer.step()
    return missing
"""


@pytest.mark.parametrize("dtype", ["None", "torch.bfloat16"])
def test_an_mlp_trains(run: Run, dtype: str) -> None:
    code = (
        STEP
        + f"""
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Dropout(0.1), nn.Linear(256, 10))
report(missing=step(model, 32, 64, dtype={dtype}))
"""
    )

    assert run(code)["missing"] == 0


@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_a_convnet_trains_with_and_without_cudnn(run: Run, layout: str) -> None:
    code = (
        STEP
        + f"""
missing = 0
for enabled in (True, False):
    for benchmark in (True, False):
        torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark = enabled, benchmark
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32),
            nn.ConvTranspose2d(32, 16, 2, 2), nn.GroupNorm(4, 16), nn.MaxPool2d(2), nn.Conv2d(16, 8, 1),
        ).to(memory_format=torch.{layout})
        missing += step(model, 4, 3, 64, 64) + step(model, 4, 3, 64, 64, dtype=torch.float16)
report(missing=missing)
"""
    )

    assert run(code)["missing"] == 0


def test_convolutions_of_one_and_three_dimensions_train(run: Run) -> None:
    code = (
        STEP
        + """
report(missing=step(nn.Conv1d(4, 8, 3), 2, 4, 100) + step(nn.Conv3d(4, 8, 3), 2, 4, 10, 10, 10))
"""
    )

    assert run(code)["missing"] == 0


def test_recurrent_layers_train_on_cudnn(run: Run) -> None:
    code = (
        STEP
        + """
missing = 0
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    model = kind(64, 128, 2, bidirectional=True, dropout=0.1)
    missing += step(model, 20, 4, 64) + step(model, 20, 4, 64, dtype=torch.bfloat16)
model.eval()
with torch.no_grad():
    shape = model(torch.randn(20, 4, 64, device="cuda"))[0].shape
report(missing=missing, shape=shape)
"""
    )

    assert run(code) == {"missing": 0, "shape": [20, 4, 256]}


def test_a_recurrent_layer_trains_without_cudnn(run: Run) -> None:
    code = (
        STEP
        + """
with torch.backends.cudnn.flags(enabled=False):
    report(missing=step(nn.LSTM(64, 128, 2), 20, 4, 64))
"""
    )

    assert run(code)["missing"] == 0


def test_attention_takes_less_memory_when_it_is_fused(run: Run) -> None:
    code = """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    peaks = {}
    for backend in ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        shape = dict(size=(4, 8, 1024, 64), device="cuda", dtype=torch.bfloat16, requires_grad=True)
        q, k, v = (torch.randn(**shape) for _ in range(3))
        with sdpa_kernel(getattr(SDPBackend, backend)):
            F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
        peaks[backend] = torch.cuda.max_memory_allocated()
        del q, k, v
    report(**peaks)
    """

    peaks = run(code)

    fused = max(peak for backend, peak in peaks.items() if backend != "MATH")
    assert fused < peaks["MATH"] / 5


def test_a_transformer_trains_and_infers(run: Run) -> None:
    code = (
        STEP
        + """
layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
model = nn.TransformerEncoder(layer, 2)
missing = step(model, 4, 32, 256)
model.eval()
with torch.inference_mode():
    report(missing=missing, shape=model(torch.randn(4, 32, 256, device="cuda")).shape)
"""
    )

    assert run(code) == {"missing": 0, "shape": [4, 32, 256]}


def test_a_newer_architecture_trains(run: Run) -> None:
    gpu = VirtualGpu(total_bytes=8 * GIB, capability="9.0")
    code = (
        STEP
        + """
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 1)
report(missing=step(model, 4, 32, 256, dtype=torch.bfloat16), capability=torch.cuda.get_device_capability())
"""
    )

    assert run(code, gpu) == {"missing": 0, "capability": [9, 0]}


def test_embeddings_train_dense_and_sparse(run: Run) -> None:
    code = """
    index = torch.randint(0, 5000, (64, 512)).cuda()
    dense = nn.Embedding(5000, 64, padding_idx=0, scale_grad_by_freq=True).cuda()
    dense(index).sum().backward()
    bag = nn.EmbeddingBag(5000, 64).cuda()
    bag(index).sum().backward()
    sparse = nn.Embedding(5000, 64, sparse=True).cuda()
    sparse(index).sum().backward()
    torch.optim.SparseAdam(sparse.parameters()).step()
    report(dense=dense.weight.grad.shape, bag=bag.weight.grad.shape, sparse=sparse.weight.grad.is_sparse)
    """

    assert run(code) == {"dense": [5000, 64], "bag": [5000, 64], "sparse": True}


def test_each_optimizer_holds_as_many_states_as_it_should(run: Run) -> None:
    code = """
    def state_mib(make):
        torch.cuda.empty_cache()
        model = nn.Linear(1024, 1024, bias=False).cuda()
        optimizer = make(model.parameters())
        model(torch.randn(8, 1024, device="cuda")).sum().backward()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        return round((torch.cuda.memory_allocated() - before) / MIB)

    report(
        sgd=state_mib(lambda p: torch.optim.SGD(p, 0.1)),
        momentum=state_mib(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        loop=state_mib(lambda p: torch.optim.Adam(p, foreach=False)),
        fused=state_mib(lambda p: torch.optim.AdamW(p, fused=True)),
        capturable=state_mib(lambda p: torch.optim.AdamW(p, capturable=True)),
        rmsprop=state_mib(lambda p: torch.optim.RMSprop(p)),
    )
    """

    seen = run(code)  # the weight is 4 MiB

    assert seen == {"sgd": 0, "momentum": 4, "loop": 8, "fused": 8, "capturable": 8, "rmsprop": 4}


def test_a_gradient_scaler_steps(run: Run) -> None:
    code = """
    model = nn.Linear(256, 10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            target = torch.zeros(64, dtype=torch.long, device="cuda")
            loss = F.cross_entropy(model(torch.randn(64, 256, device="cuda")), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    report(loss=loss.item())
    """

    assert run(code)["loss"] == 0.0


def test_a_cudnn_workspace_shows_in_the_peak(run: Run) -> None:
    code = """
    x = torch.randn(4, 16, 64, 64, device="cuda")
    nn.Conv2d(16, 16, 3, padding=1).cuda()(x)
    report(peak=torch.cuda.max_memory_allocated())
    """

    without = run(code)["peak"]
    asking = run(code, VirtualGpu(total_bytes=8 * GIB, cudnn_workspace_bytes=512 * MIB))["peak"]

    assert 500 * MIB < asking - without <= 512 * MIB


def test_a_cuda_graph_is_captured_and_replayed(run: Run) -> None:
    code = """
    model, x = nn.Linear(256, 256).cuda(), torch.zeros(32, 256, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
    torch.cuda.synchronize()
    report(shape=y.shape)
    """

    assert run(code)["shape"] == [32, 256]


def test_a_compiled_model_trains(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code = """
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()
    torch.compile(model)(torch.randn(4, 64, device="cuda")).sum().backward()
    report(missing=sum(p.grad is None for p in model.parameters()))
    """
    caches = {
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }

    assert run(code, env=caches)["missing"] == 0


def test_the_profiler_lives_without_device_records(run: Run) -> None:
    code = """
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as seen:
        x = torch.randn(256, 256, device="cuda")
        (x @ x).sum().item()
    report(names=[row.key for row in seen.key_averages()])
    """

    assert "aten::mm" in run(code)["names"]


def test_common_operators_give_their_shapes(run: Run) -> None:
    code = """
    x = torch.randn(64, 64, device="cuda")
    results = [torch.fft.fft(x), torch.special.i0(x), torch.einsum("ij,kj->ik", x, x), x.sort()[0]]
    report(shapes=[r.shape for r in results], top=x.topk(5)[0].shape, empty=x[x > 0].shape)
    """

    assert run(code) == {"shapes": [[64, 64]] * 4, "top": [64, 5], "empty": [0]}


def test_a_factorisation_is_refused_and_not_made_up(run: Run) -> None:
    code = """
    x, refused = torch.randn(64, 64, device="cuda"), []
    for function in (torch.linalg.qr, torch.linalg.eigh):
        try:
            function(x)
        except RuntimeError as error:
            refused.append("cusolver" in str(error).lower())
    report(refused=refused)
    """

    assert run(code)["refused"] == [True, True]


@pytest.mark.parametrize("capability", ["7.5", "8.9", "9.0", "12.1"])
def test_sorting_kernels_run_on_cards_that_no_wheel_is_compiled_for(run: Run, capability: str) -> None:
    # The gradient of an embedding sorts its indices from some thousands on: CUB looks at what it was compiled for.
    found = run(
        """
        layer = nn.Embedding(1000, 64, device="cuda")
        layer(torch.zeros(8192, dtype=torch.long, device="cuda")).sum().backward()
        report(shape=list(layer.weight.grad.shape))
        """,
        replace(GPU, capability=capability),
    )

    assert found == {"shape": [1000, 64]}


@pytest.mark.parametrize(
    ("kernel", "groups", "wants"),
    [(3, 1, True), (3, 2, True), (1, 1, False), (3, 16, False), (3, 64, False)],
    ids=["dense", "wide groups", "pointwise", "narrow groups", "depthwise"],
)
def test_the_gradient_of_a_wide_kernel_takes_a_share_of_input_and_output(
    run: Run, kernel: int, groups: int, wants: bool
) -> None:
    code = f"""
        x = torch.empty(16, 64, 128, 128, device="cuda")
        w = torch.empty(64, 64 // {groups}, {kernel}, {kernel}, device="cuda")
        pad = {kernel} // 2
        torch.ops.aten.convolution_backward(
            torch.empty_like(x), x, w, None, [1, 1], [pad, pad], [1, 1], False, [0, 0], {groups}, [False, True, False]
        )
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = torch.empty_like(x)
        torch.ops.aten.convolution_backward(
            y, x, w, None, [1, 1], [pad, pad], [1, 1], False, [0, 0], {groups}, [False, True, False]
        )
        report(peak=torch.cuda.max_memory_allocated() - before - x.nbytes, both=2 * x.nbytes)
    """

    without, with_ = (run(code, replace(GPU, cudnn_workspace_share=share)) for share in (0.0, 1.5))

    assert with_["peak"] - without["peak"] == (1.5 * with_["both"] if wants else 0)


def test_a_convolution_without_room_for_its_workspace_does_without(run: Run) -> None:
    found = run(
        """
        x = torch.empty(16, 64, 128, 128, device="cuda", requires_grad=True)
        layer = nn.Conv2d(64, 64, 3, padding=1, device="cuda")
        layer(x).sum().backward()
        report(done=layer.weight.grad is not None)
        """,
        VirtualGpu(total_bytes=GIB, cudnn_workspace_share=10),
    )

    assert found == {"done": True}
