#include "nibbles.h"

#include <algorithm>

#include "simd.h"

namespace headrace {
namespace {

constexpr float kLargestHalf = 65504.0f;
// How many steps the range of a group may be cut into. Fewer than there are, for groups that use a part of their
// grid, and because a grid may meet most weights better; more, because the ends may be worth cutting off.
constexpr float kCuts[] = {15, 15.5f, 16, 14.5f, 14, 13.5f, 13, 12, 11, 10, 9, 8, 7};

uint16_t to_half(float x) { return _cvtss_sh(std::min(kLargestHalf, std::max(-kLargestHalf, x)), _MM_FROUND_TO_NEAREST_INT); }
float from_half(uint16_t x) { return _cvtsh_ss(x); }

struct Grid {
  float step, lowest;
};

Grid rounded(Grid grid) { return {from_half(to_half(grid.step)), from_half(to_half(grid.lowest))}; }

Vec steps_of(const float* weights, Grid grid) {
  const Vec exact = mul(sub(load(weights), splat(grid.lowest)), splat(grid.step > 0 ? 1 / grid.step : 0.0f));
  return to_floats(to_ints(min(max(exact, splat(0.0f)), splat(15.0f))));
}

// By least squares, for the steps that `grid` gives the weights [kGroup].
Grid fit(const float* weights, Grid grid) {
  Vec n_sum = splat(0.0f), n_squares = n_sum, w_sum = n_sum, products = n_sum;
  for (int i = 0; i < kGroup; i += kLanes) {
    const Vec w = load(weights + i), n = steps_of(weights + i, grid);
    n_sum = add(n_sum, n);
    n_squares = fma(n, n, n_squares);
    w_sum = add(w_sum, w);
    products = fma(n, w, products);
  }
  const float n = sum_of(n_sum), w = sum_of(w_sum);
  const float spread = kGroup * sum_of(n_squares) - n * n;
  if (spread <= 0) return grid;
  const float step = std::max(0.0f, (kGroup * sum_of(products) - n * w) / spread);
  return {step, (w - step * n) / kGroup};
}

float squared_error(const float* weights, Grid grid) {
  Vec errors = splat(0.0f);
  for (int i = 0; i < kGroup; i += kLanes) {
    const Vec off = sub(load(weights + i), fma(steps_of(weights + i, grid), splat(grid.step), splat(grid.lowest)));
    errors = fma(off, off, errors);
  }
  return sum_of(errors);
}

Grid best_grid(const float* weights) {
  const auto [low, high] = std::minmax_element(weights, weights + kGroup);
  const float lowest = *low, range = *high - *low;
  Grid best = rounded({range / 15, lowest});
  float least = squared_error(weights, best);
  for (float cuts : kCuts) {
    if (least == 0) break;
    const Grid grid = rounded(fit(weights, {range / cuts, lowest}));
    const float error = squared_error(weights, grid);
    if (error < least) least = error, best = grid;
  }
  return best;
}

}  // namespace

Nibbles choose_nibbles(const float* weights, int count) {
  float group[kGroup];
  for (int i = 0; i < kGroup; i++) group[i] = weights[std::min(i, count - 1)];
  const Grid grid = best_grid(group);
  Nibbles found{count, to_half(grid.step), to_half(grid.lowest), {}};
  float steps[kGroup];
  for (int i = 0; i < kGroup; i += kLanes) store(steps + i, steps_of(group + i, grid));
  for (int i = 0; i < count; i++) found.steps[i] = static_cast<uint8_t>(steps[i]);
  return found;
}

}  // namespace headrace
