// Which sixteen values stand for a group of weights: lowest + n * step, n from 0 to 15.

#pragma once

#include <cstdint>

namespace headrace {

constexpr int kGroup = 32;  // weights of one column that share step and lowest

// `steps` [count], each 0 to 15; `step` and `lowest` are IEEE halves.
struct Nibbles {
  int count;
  uint16_t step, lowest;
  uint8_t steps[kGroup];
};

// The step and lowest of least squared error, of those that a search along the range finds. A group that already
// lies on such a grid (as in a file of the format Q4_1) is found exactly, though it use a part of the grid only.
// Weights beyond 65504, the largest half, are cut off.
Nibbles choose_nibbles(const float* weights, int count);

}  // namespace headrace
