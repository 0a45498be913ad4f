// SPDX-License-Identifier: Apache-2.0
#include "ps/client.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/error.h"

namespace paceline {

PsClient::PsClient(const ClientSetup& setup, const JobDescription& job, std::span<float> weights,
                   std::span<float> gradients)
    : setup_(setup),
      job_(job),
      partition_(job.plan(), job.servers),
      weights_(weights),
      gradients_(gradients),
      codec_(job.format.codec()),
      feedback_(gradients.size(), job.format.error_feedback()),
      borrowed_(std::make_shared<std::vector<std::atomic<int>>>(job.buckets.size())),
      state_(setup.rank, setup.nonce, partition_, job.format.weights()),
      sender_(setup.fabric, setup.node, setup.server_nodes),
      mailbox_(std::make_unique<WorkerMailbox>(setup.mailbox, setup.endpoints)),
      buckets_(job.buckets.size()),
      open_(static_cast<std::size_t>(job.servers), 0) {
  make_room_for_messages();
  if (job.optimizer.whole_gradient() && waits_for_all(job.rule)) {
    norms_.emplace(job.optimizer, partition_, job.tensors);
  }
  thread_ = std::thread([this] { run(); });
}

PsClient::~PsClient() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wakeup_.signal();
  thread_.join();
}

void PsClient::make_room_for_messages() {
  if (!codec_) {
    return;
  }
  constexpr std::size_t kAlign = 64;
  std::size_t bytes = 0;
  for (const KeyRange& key : partition_.keys()) {
    encoded_begin_.push_back(bytes);
    bytes += (codec_->max_bytes(key.elements()) + kAlign - 1) / kAlign * kAlign;
  }
  encoded_ = Buffer(bytes);
}

void PsClient::connect() {
  const Payload description = [this] {
    const auto bytes = encode(job_);
    return Payload::copy_of(bytes);
  }();
  std::vector<Request> requests;
  for (std::size_t server = 0; server < open_.size(); ++server) {
    requests.push_back({MessageKind::hello, server, {}, description});
  }
  post(std::move(requests));
  wait_until([this] { return open_total_ == 0; }, [] { return std::string("its hello"); });
}

void PsClient::init_weights() {
  std::vector<Request> requests;
  for (std::size_t k = 0; k < partition_.count(); ++k) {
    const Range& range = partition_.keys()[k].arena;
    requests.push_back(
        {MessageKind::init,
         k,
         {},
         Payload::copy_of(std::as_bytes(weights_.subspan(range.begin, range.size())))});
  }
  post(std::move(requests));
  wait_until([this] { return open_total_ == 0; }, [] { return std::string("the first weights"); });
}

void PsClient::pull_all() {
  std::vector<Request> requests;
  for (std::size_t k = partition_.count(); k-- > 0;) {
    requests.push_back({MessageKind::pull, k, {}, {}});
  }
  post(std::move(requests));
  wait_until([this] { return open_total_ == 0; }, [] { return std::string("a pull"); });
}

void PsClient::push(BucketId b, const StepInfo& info) {
  const auto bucket = static_cast<std::size_t>(b);
  std::vector<Request> requests;
  for (const std::size_t k : partition_.keys_of(b)) {
    const std::span<const std::byte> bytes = push_bytes(k, info);
    (*borrowed_)[bucket].fetch_add(1, std::memory_order_relaxed);
    const std::shared_ptr<const void> loan(
        bytes.data(), [borrowed = borrowed_, bucket](const void* /*gradients*/) {
          (*borrowed)[bucket].fetch_sub(1, std::memory_order_release);
        });
    requests.push_back({MessageKind::push, k, info, Payload(bytes, loan)});
  }
  post(std::move(requests));
}

/// The key's gradient as it travels.
std::span<const std::byte> PsClient::push_bytes(std::size_t key, const StepInfo& info) {
  const Range& range = partition_.keys()[key].arena;
  const std::span<float> gradient = gradients_.subspan(range.begin, range.size());
  if (!codec_) {
    return std::as_bytes(gradient);
  }
  const std::span<std::byte> room(encoded_.data() + encoded_begin_[key],
                                  codec_->max_bytes(range.size()));
  if (info.samples == 0) {
    // Nothing would be learned from what error feedback kept: it waits.
    const CodecContext none =
        job_.format.context(static_cast<std::uint64_t>(info.step), range.begin, 0, setup_.rank);
    return room.first(codec_->encode(gradient, none, room));
  }
  const CodecContext context =
      job_.format.context(static_cast<std::uint64_t>(info.step), range.begin,
                          static_cast<std::uint64_t>(info.samples), setup_.rank);
  return room.first(feedback_.encode(*codec_, gradient, context, room));
}

PushOutcome PsClient::wait(BucketId b) {
  Bucket& bucket = buckets_[static_cast<std::size_t>(b)];
  const auto what = [&bucket, b] {
    return fmt::format("the push of bucket {} in step {}", b, bucket.step);
  };
  wait_until([&bucket] { return bucket.open == 0; }, what);
  // The answer is here, so the gradient has left; the thread that sent it may not have noted so.
  const std::atomic<int>& borrowed = (*borrowed_)[static_cast<std::size_t>(b)];
  const Deadline deadline = Deadline::after(setup_.mailbox.timeout);
  while (borrowed.load(std::memory_order_acquire) != 0) {
    if (deadline.passed()) {
      throw TimeoutError(
          fmt::format("rank {}: the gradient of bucket {} was not sent in time", setup_.rank, b));
    }
    setup_.abort->check();
    std::this_thread::yield();
  }
  const std::scoped_lock lock(mutex_);
  return std::exchange(bucket.outcome, {});
}

void PsClient::drain() {
  std::vector<Request> requests;
  for (std::size_t server = 0; server < open_.size(); ++server) {
    requests.push_back({MessageKind::drain, server, {}, {}});
  }
  post(std::move(requests));
  wait_until([this] { return open_total_ == 0; },
             [] { return std::string("the end of all workers' pushes"); });
}

std::vector<std::byte> PsClient::get_state(std::size_t key) {
  post({{MessageKind::state_get, key, {}, {}}});
  wait_until([this] { return open_total_ == 0; },
             [key] { return fmt::format("a request for the state of key {}", key); });
  const std::scoped_lock lock(mutex_);
  return std::exchange(state_answer_, {});
}

void PsClient::put_state(std::size_t key, const std::vector<std::byte>& state) {
  post({{MessageKind::state_put, key, {}, Payload::copy_of(state)}});
  wait_until([this] { return open_total_ == 0; },
             [key] { return fmt::format("the state of key {}", key); });
}

ClientReport PsClient::take_report() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(report_, {});
}

void PsClient::post(std::vector<Request> requests) {
  if (requests.empty()) {
    return;
  }
  {
    const std::int64_t now = now_ns();
    const std::scoped_lock lock(mutex_);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    for (Request& request : requests) {
      const bool whole = request.kind == MessageKind::hello || request.kind == MessageKind::drain;
      const KeyRange* key = whole ? nullptr : &partition_.keys()[request.target];
      ++open_[whole ? request.target : static_cast<std::size_t>(key->server)];
      ++open_total_;
      if (request.kind == MessageKind::push) {
        Bucket& bucket = buckets_[static_cast<std::size_t>(key->bucket)];
        if (bucket.open++ == 0) {
          bucket.outcome.begin_ns = now;
        }
        bucket.step = request.info.step;
      }
      requests_.push_back(std::move(request));
    }
  }
  wakeup_.signal();
}

void PsClient::wait_until(const std::function<bool()>& done,
                          const std::function<std::string()>& what) {
  const Deadline deadline = Deadline::after(setup_.mailbox.timeout);
  std::unique_lock lock(mutex_);
  while (!done()) {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    setup_.abort->check();
    if (deadline.passed()) {
      throw TimeoutError(fmt::format("rank {}: {} did not answer {} within {:.1f} s", setup_.rank,
                                     open_servers(), what(),
                                     seconds(setup_.mailbox.timeout.count())));
    }
    changed_.wait_for(lock, kAbortPollInterval);
  }
}

std::string PsClient::open_servers() const {
  std::string names;
  for (std::size_t server = 0; server < open_.size(); ++server) {
    if (open_[server] > 0) {
      names += fmt::format("{}server {} ({})", names.empty() ? "" : ", ", server,
                           setup_.endpoints[server]);
    }
  }
  return names.empty() ? "nobody" : names;
}

}  // namespace paceline
