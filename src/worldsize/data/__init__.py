"""Data sets as plain arrays: numpy and Pillow only, so that a decoding process starts without torch.

idx.py       MNIST and Fashion-MNIST
cifar.py     CIFAR-10's binary batches
images.py    any folder of images, one folder a class
steering.py  a CSV of camera frames and steering angles
cache.py     images decoded once, kept as one memory-mapped array
decode.py    one image file to pixels; also the program that decoders.py runs on every core
"""
