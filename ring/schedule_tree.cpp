// SPDX-License-Identifier: Apache-2.0
// Two binary trees in which almost every rank is an inner node of one and a leaf of the other, so
// that both directions of its link are used (Sanders, Speck & Träff 2009).
#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "ring/algorithms.h"

namespace paceline::algorithms {

namespace {

struct TreePlace {
  int parent = -1;            ///< -1: the root
  std::vector<int> children;  ///< at most two
};

/// The in-order tree over nodes 1..size-1 below node 0: node v hangs with its lowest set bit `b`
/// under v with that bit moved up by one; odd nodes are leaves.
TreePlace in_order_place(int node, int size) {
  TreePlace place;
  const auto width = static_cast<int>(std::bit_ceil(static_cast<unsigned>(size)));
  const int bit = node == 0 ? width : node & -node;
  if (node != 0) {
    const int up = (node ^ bit) | (bit << 1);
    place.parent = up < size ? up : node ^ bit;
  }
  if (node != 0 && bit > 1) {
    place.children.push_back(node - bit / 2);
  }
  for (int half = bit / 2; half > 0; half /= 2) {
    if (node + half < size) {
      place.children.push_back(node + half);
      break;
    }
  }
  return place;
}

/// Tree 0 is the in-order tree, tree 1 the same with its nodes mirrored (even world) or shifted by
/// one (odd), which makes leaves of inner nodes.
TreePlace place_of(int rank, int world, int tree) {
  const bool mirror = world % 2 == 0;
  const auto to_node = [&](int r) {
    return tree == 0 ? r : mirror ? world - 1 - r : (r + world - 1) % world;
  };
  const auto to_rank = [&](int node) {
    return tree == 0 ? node : mirror ? world - 1 - node : (node + 1) % world;
  };
  TreePlace place = in_order_place(to_node(rank), world);
  if (place.parent >= 0) {
    place.parent = to_rank(place.parent);
  }
  std::transform(place.children.begin(), place.children.end(), place.children.begin(), to_rank);
  return place;
}

void reduce(ScheduleBuilder& builder, const TreePlace& place, Range piece) {
  for (const int child : place.children) {
    builder.receive(child, piece, true);
  }
  if (place.parent >= 0) {
    builder.send(place.parent, piece);
  }
}

void broadcast(ScheduleBuilder& builder, const TreePlace& place, Range piece) {
  if (place.parent >= 0) {
    builder.receive(place.parent, piece, false);
  }
  for (const int child : place.children) {
    builder.send(child, piece);
  }
}

}  // namespace

void tree_allreduce(ScheduleBuilder& builder) {
  const int world = builder.world();
  const std::size_t half = builder.count() - builder.count() / 2;
  const std::array<Range, 2> halves{Range{0, half}, Range{half, builder.count()}};
  std::array<TreePlace, 2> places;
  std::array<std::vector<Range>, 2> pieces;
  for (int tree = 0; tree < 2; ++tree) {
    const auto t = static_cast<std::size_t>(tree);
    places[t] = place_of(builder.rank(), world, tree);
    builder.for_pieces(halves[t], [&](Range piece) { pieces[t].push_back(piece); });
  }
  // Broadcasts trail the reductions by the time that a piece needs to reach the root, so that
  // neither direction of a link waits for the other's backlog.
  const auto lag = static_cast<std::size_t>(2 * std::bit_width(static_cast<unsigned>(world)));
  const std::size_t turns = std::max(pieces[0].size(), pieces[1].size());
  for (std::size_t turn = 0; turn < turns + lag; ++turn) {
    for (std::size_t t = 0; t < 2; ++t) {
      if (turn < pieces[t].size()) {
        reduce(builder, places[t], pieces[t][turn]);
      }
    }
    for (std::size_t t = 0; t < 2; ++t) {
      if (turn >= lag && turn - lag < pieces[t].size()) {
        broadcast(builder, places[t], pieces[t][turn - lag]);
      }
    }
  }
}

}  // namespace paceline::algorithms
