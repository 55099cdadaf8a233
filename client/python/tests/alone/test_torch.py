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
