"""Tensors of torch, where it is installed."""

import pytest

import muster

torch = pytest.importorskip("torch")


def test_all_reduce_takes_tensors_of_torch(tmp_path):
    muster.init(init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.ones(4, dtype=dtype)
        muster.all_reduce(tensor)
        assert tensor.tolist() == [1] * 4
    with pytest.raises(muster.ArgumentError, match="argument array"):
        muster.all_reduce(torch.ones(4, 4)[:, ::2])
    muster.destroy()


def test_data_parallel_takes_tensors_of_torch(tmp_path):
    muster.init(init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    weights = torch.ones(2, 3, requires_grad=True)
    weights.grad = torch.zeros(2, 3)
    with pytest.raises(muster.ArgumentError,
                       match=r"argument parameters\['w'\]: .*detach"):
        muster.parallel.DataParallel({"w": weights})
    half = torch.zeros(4, dtype=torch.bfloat16)
    model = muster.parallel.DataParallel({"w": weights.detach(), "half": half},
                                         {"w": weights.grad})
    (2 * weights).sum().backward()
    model.ready("w")
    model.ready("half", torch.full((4,), 3, dtype=torch.bfloat16))
    model.finish_step()
    assert model.gradient("w") is weights.grad
    assert weights.grad.tolist() == [[2] * 3] * 2
    gradient = torch.frombuffer(model.gradient("half"), dtype=torch.bfloat16)
    assert gradient.tolist() == [3] * 4
    muster.destroy()
