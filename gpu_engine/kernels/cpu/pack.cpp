// Weights from rows of floats to the blocks that `formats.h` describes.

#include <algorithm>

#include "linear.h"
#include "nibbles.h"

namespace headrace {
namespace {

// Which row of the matrix is column `column` of block `block`; -1: none, the place is filled with zeros.
int source_of(int block, int column, int outputs, bool gated) {
  if (!gated) {
    const int row = block * kColumns + column;
    return row < outputs ? row : -1;
  }
  const int half = outputs / 2, gate = block * kLanes + column % kLanes;
  if (gate >= half) return -1;
  return column < kLanes ? gate : half + gate;
}

float largest(const float* row, int count) {
  float most = 0;
  for (int k = 0; k < count; k++) most = std::max(most, std::fabs(row[k]));
  return most;
}

struct Place {
  char* block;
  float* scales;
  int chunk_stride;  // floats between the scales of a column's chunks; 0: one for all
  int column;
};

void put(Float32, const Place& to, const float* row, int inputs) {
  float* words = reinterpret_cast<float*>(to.block);
  for (int k = 0; k < inputs; k++) words[k * kColumns + to.column] = row[k];
}

void put(Bf16, const Place& to, const float* row, int inputs) {
  uint16_t* halves = reinterpret_cast<uint16_t*>(to.block);
  const int place = to.column % kLanes * 2 + to.column / kLanes;
  for (int k = 0; k < inputs; k++) store(halves + k * kColumns + place, row[k]);
}

template <class Whole>
void put_rounded(const Place& to, const float* row, int first, int count, int most, float largest_one, float* scale) {
  const float step = largest_one / static_cast<float>(most);
  *scale = step;
  if (step == 0) return;
  Whole* halves = reinterpret_cast<Whole*>(to.block);
  for (int k = first; k < first + count; k++)
    halves[(k / 2 * kColumns + to.column) * 2 + k % 2] = static_cast<Whole>(std::lrintf(row[k] / step));
}

void put(Int16, const Place& to, const float* row, int inputs) {
  put_rounded<int16_t>(to, row, 0, inputs, kMaxWeight, largest(row, inputs), to.scales + to.column);
}

void put(Int8, const Place& to, const float* row, int inputs) {
  for (int k = 0, chunk = 0; k < inputs; k += Int8::kChunk, chunk++) {
    const int count = std::min(Int8::kChunk, inputs - k);
    put_rounded<int8_t>(to, row, k, count, 127, largest(row + k, count), to.scales + chunk * to.chunk_stride + to.column);
  }
}

void put(Int4, const Place& to, const float* row, int inputs) {
  const int lane = to.column % kLanes, shift = to.column < kLanes ? 0 : 4;
  for (int k = 0, chunk = 0; k < inputs; k += Int4::kChunk, chunk++) {
    const Nibbles found = choose_nibbles(row + k, std::min(Int4::kChunk, inputs - k));
    uint8_t* words = reinterpret_cast<uint8_t*>(to.block) + int64_t(k) / 2 * kColumns;
    for (int i = 0; i < found.count; i++) words[i / 2 * kColumns + lane * 2 + i % 2] |= found.steps[i] << shift;
    uint16_t* side = reinterpret_cast<uint16_t*>(to.scales + chunk * to.chunk_stride + to.column / kLanes * kLanes);
    side[lane] = found.step;
    side[kLanes + lane] = found.lowest;
  }
}

}  // namespace

int64_t packed_bytes(Format format, int outputs, int inputs) {
  int64_t bytes = 0;
  with_format(format, [&](auto f) {
    typedef decltype(f) F;
    bytes = int64_t(round_up(outputs, kColumns) / kColumns) * (padded_k(inputs) / F::kPerWord) * F::kBytes;
  });
  return bytes;
}

int64_t num_scales(Format format, int outputs, int inputs) {
  const int64_t columns = round_up(outputs, kColumns);
  int64_t count = 0;
  with_format(format, [&](auto f) {
    typedef decltype(f) F;
    count = F::kChunkScales ? columns * chunks_of<F>(inputs) : F::kIntegers ? columns : 0;
  });
  return count;
}

void pack(Pool& pool, Format format, const float* weights, int outputs, int inputs, bool gated, char* packed, float* scales) {
  with_format(format, [&](auto f) {
    typedef decltype(f) F;
    const int blocks = round_up(outputs, kColumns) / kColumns, chunks = chunks_of<F>(inputs);
    const int64_t block_bytes = int64_t(padded_k(inputs) / F::kPerWord) * F::kBytes;
    const int64_t block_scales = F::kChunkScales ? int64_t(chunks) * kColumns : kColumns;
    pool.run(blocks, [&](int block) {
      Place to{packed + block * block_bytes, scales ? scales + block * block_scales : nullptr, kColumns, 0};
      std::memset(to.block, 0, block_bytes);
      if (scales) std::memset(to.scales, 0, block_scales * sizeof(float));
      for (to.column = 0; to.column < kColumns; to.column++) {
        const int row = source_of(block, to.column, outputs, gated);
        if (row >= 0) put(f, to, weights + int64_t(row) * inputs, inputs);
      }
    });
  });
}

}  // namespace headrace
