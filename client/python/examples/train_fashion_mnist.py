#!/usr/bin/env python3
"""Distributed training in numpy: a perceptron learns Fashion-MNIST.

    python3 -m muster.run --standalone --nproc-per-node=4 train_fashion_mnist.py

Every rank computes the gradients of its part of each batch. DataParallel makes
the averages over the ranks while the next gradient is computed, and all ranks
make the same step. The numbers are the same as those of one rank with the whole
batch, but for rounding. With --checkpoint-dir each epoch is saved, and a later
run goes on from there, also with another number of ranks. The data is package
dataset-fashion-mnist.
"""

import argparse
import gzip
import os

import numpy as np

import muster
from muster import checkpoint
from muster.parallel import DataParallel

CLASSES = 10
PIXEL_MEAN, PIXEL_DEVIATION = 0.2860, 0.3530


def read(folder, part):
    """The images, one a row, and their classes."""
    def data(kind, skip):
        path = os.path.join(folder, f"{part}-{kind}-ubyte.gz")
        with gzip.open(path) as file:
            return np.frombuffer(file.read(), np.uint8, offset=skip)

    labels = data("labels-idx1", 8)
    images = data("images-idx3", 16).reshape(len(labels), -1)
    scaled = (images.astype(np.float32) / 255 - PIXEL_MEAN) / PIXEL_DEVIATION
    return scaled, labels


class Perceptron:
    """One hidden layer."""

    def __init__(self, inputs, hidden, seed):
        random = np.random.default_rng(seed)

        def make_weights(rows, columns):
            return random.normal(0, np.sqrt(2 / rows),
                                 (rows, columns)).astype(np.float32)

        self.parameters = {
            "weights": make_weights(inputs, hidden),
            "bias": np.zeros(hidden, np.float32),
            "out_weights": make_weights(hidden, CLASSES),
            "out_bias": np.zeros(CLASSES, np.float32),
        }

    def forward(self, images):
        weights, bias, out_weights, out_bias = self.parameters.values()
        hidden = np.maximum(images @ weights + bias, 0)
        return hidden, hidden @ out_weights + out_bias

    def compute_gradients(self, images, labels, share, ready):
        """The loss of these images, times `share`. Each gradient, times `share`,
        goes to `ready` as soon as it is there."""
        hidden, scores = self.forward(images)
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = share * -np.log(chances[rows, labels]).mean()
        chances[rows, labels] -= 1
        chances *= share / len(labels)
        ready("out_bias", chances.sum(axis=0))
        ready("out_weights", hidden.T @ chances)
        back = chances @ self.parameters["out_weights"].T
        back[hidden == 0] = 0
        ready("bias", back.sum(axis=0))
        ready("weights", images.T @ back)
        return loss


def train(options):
    rank, size = muster.get_rank(), muster.get_world_size()
    images, labels = read(options.data_dir, "train")
    model = Perceptron(images.shape[1], options.hidden_units, options.seed)
    average = DataParallel(model.parameters)
    velocity = {name: np.zeros_like(array)
                for name, array in model.parameters.items()}
    state = [*model.parameters.items(),
             *(("velocity of " + name, array)
               for name, array in velocity.items())]
    first, storage = 0, None
    if options.checkpoint_dir:
        storage = checkpoint.DirectoryStorage(options.checkpoint_dir)
        loaded = checkpoint.load_newest(storage, state)
        first = loaded.step if loaded else 0
    for epoch in range(first, options.epochs):
        # The same order on all ranks; each takes every size-th image of a batch.
        order = np.random.default_rng((options.seed, epoch)).permutation(
            len(labels))
        rate = options.learning_rate * (1 - epoch / options.epochs)
        losses = []
        for step in range(len(order) // options.global_batch):
            if options.max_steps and step == options.max_steps:
                break
            batch = order[step * options.global_batch:][:options.global_batch]
            mine = batch[rank::size]
            losses.append(model.compute_gradients(
                images[mine], labels[mine], size * len(mine) / len(batch),
                average.ready))
            average.finish_step()
            for name, array in model.parameters.items():
                velocity[name] *= options.momentum
                velocity[name] += average.gradient(name)
                array -= rate * velocity[name]
        loss = np.array([np.mean(losses)])
        muster.all_reduce(loss, op=muster.ReduceOp.AVG)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss[0]:.4f}", flush=True)
        if storage:
            checkpoint.save(storage, epoch + 1, state, keep_newest=2)
    return model


def test(model, options):
    """The part of the test images that the model knows; each rank takes some."""
    rank, size = muster.get_rank(), muster.get_world_size()
    images, labels = read(options.data_dir, "t10k")
    _, scores = model.forward(images[rank::size])
    correct = np.array([(scores.argmax(axis=1) == labels[rank::size]).sum()])
    muster.all_reduce(correct)
    return correct[0] / len(labels)


def parameters_are_equal(model):
    """Whether all ranks have the same bits."""
    bits = np.concatenate([array.ravel() for array
                           in model.parameters.values()]).view(np.int32)
    least, greatest = bits.copy(), bits.copy()
    muster.all_reduce(least, op=muster.ReduceOp.MIN)
    muster.all_reduce(greatest, op=muster.ReduceOp.MAX)
    return np.array_equal(least, greatest)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--global-batch", type=int, default=128)
    parser.add_argument("--hidden-units", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-dir")
    parser.add_argument("--max-steps", type=int, default=0,
                        help="end each epoch after this many steps; 0: no limit")
    options = parser.parse_args()
    muster.init()
    if options.global_batch < muster.get_world_size():
        parser.error("--global-batch must be one image for each rank at least")
    model = train(options)
    accuracy = test(model, options)
    equal = parameters_are_equal(model)
    if muster.get_rank() == 0:
        print(f"accuracy {100 * accuracy:.2f} %, {muster.get_world_size()} "
              f"ranks, parameters {'equal' if equal else 'DIFFERENT'}")
    muster.destroy()
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
