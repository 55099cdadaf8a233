#!/usr/bin/env python3
"""Distributed training in numpy: a perceptron learns Fashion-MNIST.

    python3 -m muster.run --standalone --nproc-per-node=4 train_fashion_mnist.py

Every rank computes the gradient of its part of each batch; one all_reduce makes
the mean of all of them, and all ranks make the same step. The numbers are the
same as those of one rank with the whole batch, but for rounding. The data is
package dataset-fashion-mnist.
"""

import argparse
import gzip
import os

import numpy as np

import muster

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
    """One hidden layer. All parameters are parts of one array, and so are their
    gradients: one all_reduce takes them all."""

    def __init__(self, inputs, hidden, seed):
        shapes = [(inputs, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
        count = sum(int(np.prod(shape)) for shape in shapes)
        self.parameters = np.zeros(count, np.float32)
        # The loss goes along as the last element.
        self.gradient = np.zeros(count + 1, np.float32)
        self.layers = self.cut(self.parameters, shapes)
        self.gradients = self.cut(self.gradient, shapes)
        random = np.random.default_rng(seed)
        for weights in self.layers[::2]:
            scale = np.sqrt(2 / len(weights))
            weights[:] = random.normal(0, scale, weights.shape)

    @staticmethod
    def cut(array, shapes):
        parts, start = [], 0
        for shape in shapes:
            end = start + int(np.prod(shape))
            parts.append(array[start:end].reshape(shape))
            start = end
        return parts

    def forward(self, images):
        weights, bias, out_weights, out_bias = self.layers
        hidden = np.maximum(images @ weights + bias, 0)
        return hidden, hidden @ out_weights + out_bias

    def compute_gradient(self, images, labels, share):
        """The gradient and the loss of these images, times `share`."""
        hidden, scores = self.forward(images)
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        self.gradient[-1] = share * -np.log(chances[rows, labels]).mean()
        chances[rows, labels] -= 1
        chances *= share / len(labels)
        back = chances @ self.layers[2].T
        back[hidden == 0] = 0
        parts = [images.T @ back, back.sum(axis=0), hidden.T @ chances,
                 chances.sum(axis=0)]
        for into, part in zip(self.gradients, parts):
            into[:] = part


def train(options):
    rank, size = muster.get_rank(), muster.get_world_size()
    images, labels = read(options.data_dir, "train")
    model = Perceptron(images.shape[1], options.hidden_units, options.seed)
    velocity = np.zeros_like(model.parameters)
    average = muster.prepare_all_reduce(model.gradient)
    for epoch in range(options.epochs):
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
            model.compute_gradient(images[mine], labels[mine],
                                   len(mine) / len(batch))
            average.run()
            losses.append(model.gradient[-1])
            velocity *= options.momentum
            velocity += model.gradient[:-1]
            model.parameters -= rate * velocity
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}", flush=True)
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
    bits = model.parameters.view(np.int32)
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
