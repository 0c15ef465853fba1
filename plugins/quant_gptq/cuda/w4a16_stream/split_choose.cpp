// How a product without a norm is cut, from measurements on an H200 at the shapes of Gemma 4 12B.
#include <algorithm>

#include "quant_gptq/cuda/w4a16_stream/split.h"

namespace facet::linear {

namespace {

constexpr int kRingBytes = 25 << 10;  // that a block should have
constexpr int kFirstCopies = 2;
constexpr int kCopies = 4;

int clusters_of(const SplitDevice& device, int splits) {
  return splits <= 2 ? device.multiprocessors / splits : device.clusters[splits];
}

// Sets the cut; false when the last block of a cluster would have no chunks, or the device has no such clusters.
bool set_cut(StreamArgs& args, int splits, int clusters) {
  const int chunks = (args.shape.chunks + splits - 1) / splits;
  if ((splits - 1) * chunks >= args.shape.chunks || clusters == 0) return false;
  args.splits = splits;
  args.clusters = std::min(args.shape.units, clusters);
  args.block_chunks = chunks;
  const int units = (args.shape.units + args.clusters - 1) / args.clusters;
  args.depth = (units + splits - 1) / splits > 1 ? kSplitDepth : 1;
  return true;
}

// Blocks of a cluster that is fastest when it fits. More than one block shares the inputs where a block would have one
// unit only to use them for.
int wanted_splits(const Rows32& shape, int multiprocessors) {
  if (shape.units > multiprocessors) return 1;
  return shape.chunks >= 96 ? 4 : 2;
}

}  // namespace

bool split_fits(const Rows32& shape, int rows, int shared_per_block) {
  StreamArgs args{};
  args.shape = shape;
  args.rows = rows;
  for (int splits = 1; splits <= kMostSplits; splits *= 2) {
    if (set_cut(args, splits, 1 << 20) && split_ring(args, shared_per_block) != 0) return true;
  }
  return false;
}

int split_cut(StreamArgs& args, const SplitDevice& device) {
  const int wanted = wanted_splits(args.shape, device.multiprocessors);
  set_cut(args, 1, device.multiprocessors);
  // Half of what two blocks share, less their reserve.
  const int room = device.shared_per_multiprocessor * 15 / 32;
  for (int splits = 2; splits <= kMostSplits; splits *= 2) {
    if (args.splits >= wanted && split_fixed_bytes(args) + kRingBytes <= room) break;
    set_cut(args, splits, clusters_of(device, splits));
  }
  // With clusters of up to two every multiprocessor gets a block, be it without units.
  if (args.splits <= 2) return device.multiprocessors / args.splits * args.splits;
  return args.clusters * args.splits;
}

int split_ring(StreamArgs& args, int shared) {
  const int fixed = split_fixed_bytes(args);
  const int page = gemv_page_bytes(args.shape);
  args.slots = std::min((shared - fixed) / page, split_max_slots());
  args.first_copies = kFirstCopies;
  args.copies = kCopies;
  if (args.slots >= kSplitMinSlots) return fixed + args.slots * page;
  args.slots = 0;
  return 0;
}

}  // namespace facet::linear
