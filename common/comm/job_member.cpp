// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "common/base/error.h"
#include "common/comm/job.h"
#include "common/comm/job_connection.h"
#include "common/comm/job_frame.h"
#include "common/comm/job_timing.h"

namespace paceline {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kConnectRetry{20};
constexpr std::chrono::milliseconds kGoodbyeTimeout{500};
constexpr std::chrono::milliseconds kAnswerTimeout{2000};

/// Connects, and tries again while nobody listens yet: ranks that something else launched may be
/// faster than the hub's.
tcp::socket connect(asio::io_context& io, const std::string& host, std::uint16_t port,
                    const std::string& name, Nanoseconds timeout, const AbortToken& abort) {
  const Deadline deadline = Deadline::after(timeout);
  struct Attempt {
    explicit Attempt(asio::io_context& context) : socket(context) {}
    tcp::socket socket;
    std::optional<error_code> result;
  };
  error_code last = asio::error::timed_out;
  while (true) {
    auto attempt = std::make_shared<Attempt>(io);
    tcp::resolver resolver(io);
    error_code unknown_host;
    const auto endpoints = resolver.resolve(host, std::to_string(port), unknown_host);
    if (unknown_host) {
      last = unknown_host;
    } else {
      asio::async_connect(
          attempt->socket, endpoints,
          [attempt](error_code error, const tcp::endpoint&) { attempt->result = error; });
      while (!attempt->result && !deadline.passed() && !abort.requested()) {
        io.restart();
        io.run_one_for(kAbortPollInterval);
      }
      if (attempt->result && !*attempt->result) {
        return std::move(attempt->socket);
      }
      last = attempt->result.value_or(last);
      error_code ignored;
      attempt->socket.close(ignored);
      io.restart();
      io.poll();
    }
    abort.check();
    if (deadline.passed()) {
      throw HubLost(fmt::format("{} could not reach the job's hub at {} within {:.1f} s: {}", name,
                                endpoint_text(host, port), seconds(timeout.count()),
                                last.message()));
    }
    std::this_thread::sleep_for(kConnectRetry);
  }
}

}  // namespace

/// The listener's events and the timer run on thread_; the mutex guards what callers wait for.
class JobMember::Impl final : public JobConnection::Listener {
 public:
  Impl(const JobSpec& spec, int member, const std::string& host, std::uint16_t port,
       AbortToken& abort)
      : spec_(spec),
        member_(member),
        hub_(endpoint_text(host, port)),
        abort_(abort),
        timer_(io_),
        ticker_(spec.timeout) {
    Hello hello;
    hello.nonce = spec.nonce;
    hello.member = static_cast<std::uint32_t>(member);
    hello.world = static_cast<std::uint32_t>(spec.world);
    hello.servers = static_cast<std::uint32_t>(spec.servers);
    hello.digest = spec.config_digest;
    std::string frame = encode(hello);
    connection_ = std::make_shared<JobConnection>(
        connect(io_, host, port, member_name(member, spec.world), spec.timeout, abort),
        FrameReader::From::hub, *this);
    io_.restart();
    connection_->send(std::move(frame));
    connection_->start();
    schedule_tick();
    thread_ = std::thread([this] { io_.run(); });
    try {
      wait_for_welcome();
    } catch (...) {
      stop();
      throw;
    }
    const int everyone = spec.world + spec.servers;
    groups_[1].emplace(*this, JobGroup::everyone, everyone);
    if (member < spec.world) {
      groups_[0].emplace(*this, JobGroup::workers, spec.world);
    }
  }

  ~Impl() override {
    if (std::uncaught_exceptions() == uncaught_) {
      say_goodbye();
    }
    stop();
  }

  [[nodiscard]] Communicator* workers() noexcept { return groups_[0] ? &*groups_[0] : nullptr; }
  [[nodiscard]] Communicator& everyone() noexcept { return *groups_[1]; }

  std::exception_ptr fail(const std::exception& error) noexcept {
    try {
      std::unique_lock lock(mutex_);
      if (!over_ && !left_) {
        left_ = true;
        failing_ = true;
        send(encode(FrameType::failed, to_job_end(error)));
        const Deadline deadline =
            Deadline::after(std::min<Nanoseconds>(spec_.timeout / 4, kAnswerTimeout));
        while (!over_ && !deadline.passed()) {
          changed_.wait_for(lock, kAbortPollInterval);
        }
      }
      if (told_) {
        return nullptr;
      }
      return over_ ? over_
                   : std::make_exception_ptr(HubLost(
                         fmt::format("the job's hub at {} (launcher or rank 0) does not answer: {}",
                                     hub_, error.what())));
    } catch (const std::exception&) {
      return std::current_exception();
    }
  }

 private:
  class GroupCommunicator final : public Communicator {
   public:
    GroupCommunicator(Impl& impl, JobGroup group, int size)
        : impl_(impl), group_(group), size_(size) {}
    [[nodiscard]] int rank() const noexcept override { return impl_.member_; }
    [[nodiscard]] int size() const noexcept override { return size_; }
    [[nodiscard]] std::vector<std::string> allgather(std::string blob) override {
      return impl_.gather({group_, ++sequence_, std::move(blob)}, size_);
    }

   private:
    Impl& impl_;
    JobGroup group_;
    int size_;
    std::uint64_t sequence_ = 0;
  };

  // ---- Callers' side

  std::vector<std::string> gather(const Gather& gather, int size) {
    abort_.check();
    std::string frame = encode(gather);
    std::unique_lock lock(mutex_);
    std::optional<GatherResult>& slot = results_[static_cast<std::size_t>(gather.group)];
    slot.reset();
    send(std::move(frame));
    // The hub times a collective out and knows who is missing; this is for a hub that cannot.
    const Deadline deadline = Deadline::after(spec_.timeout + spec_.timeout / 2);
    while (!slot) {
      check(lock);
      if (deadline.passed()) {
        throw TimeoutError(
            fmt::format("the job's hub at {} did not answer a collective within "
                        "{:.1f} s",
                        hub_, 1.5 * seconds(spec_.timeout.count())));
      }
      changed_.wait_for(lock, kAbortPollInterval);
    }
    if (slot->sequence != gather.sequence || slot->blobs.size() != static_cast<std::size_t>(size)) {
      throw Error(fmt::format("the job's hub answered collective {} of {} members, not {} of {}",
                              slot->sequence, slot->blobs.size(), gather.sequence, size));
    }
    std::vector<std::string> blobs = std::move(slot->blobs);
    slot.reset();
    return blobs;
  }

  void wait_for_welcome() {
    // Half a timeout more than the hub waits: it knows who is missing.
    const Deadline deadline = Deadline::after(spec_.timeout + spec_.timeout / 2);
    std::unique_lock lock(mutex_);
    while (!welcome_) {
      check(lock);
      if (deadline.passed()) {
        throw TimeoutError(fmt::format("the job's hub at {} did not answer within {:.1f} s", hub_,
                                       1.5 * seconds(spec_.timeout.count())));
      }
      changed_.wait_for(lock, kAbortPollInterval);
    }
  }

  /// Throws what ended the job or this process.
  void check(std::unique_lock<std::mutex>& lock) {
    if (over_) {
      std::rethrow_exception(over_);
    }
    lock.unlock();
    abort_.check();
    lock.lock();
  }

  void send(std::string frame) {
    asio::post(io_,
               [this, bytes = std::move(frame)]() mutable { connection_->send(std::move(bytes)); });
  }

  /// The hub answers by closing, so that no goodbye is lost in a reset.
  void say_goodbye() {
    std::unique_lock lock(mutex_);
    if (closed_) {
      return;
    }
    const bool failed = std::exchange(left_, true);
    if (failed) {
      return;
    }
    send(encode_empty(FrameType::goodbye));
    const Deadline deadline =
        Deadline::after(std::min<Nanoseconds>(spec_.timeout, kGoodbyeTimeout));
    while (!closed_ && !deadline.passed()) {
      changed_.wait_for(lock, kAbortPollInterval);
    }
  }

  void stop() {
    asio::post(io_, [this] {
      stopping_ = true;
      timer_.cancel();
      connection_->close();
    });
    thread_.join();
  }

  // ---- thread_

  void on_frame(JobConnection&, Frame frame) override {
    if (frame.type == FrameType::result) {
      GatherResult result = decode_result(frame.payload);
      const std::scoped_lock lock(mutex_);
      results_[static_cast<std::size_t>(result.group)] = std::move(result);
    } else if (frame.type == FrameType::welcome) {
      const std::scoped_lock lock(mutex_);
      welcome_ = true;
    } else if (frame.type == FrameType::job_over) {
      {
        const std::scoped_lock lock(mutex_);
        told_ = true;
      }
      over(to_exception(decode_end(frame.payload)));
    }
    changed_.notify_all();
  }

  void on_closed(JobConnection&, const std::string& why) override {
    bool expected = false;
    {
      const std::scoped_lock lock(mutex_);
      closed_ = true;
      expected = left_ && !failing_;  // whoever fails waits for an answer
    }
    if (!expected) {
      hub_lost(why);
    }
    changed_.notify_all();
  }

  void hub_lost(const std::string& why) {
    over(std::make_exception_ptr(
        HubLost(fmt::format("the job's hub at {} (launcher or rank 0) was lost: {}", hub_, why))));
  }

  void over(const std::exception_ptr& reason) {
    {
      const std::scoped_lock lock(mutex_);
      if (!over_) {
        over_ = reason;
      }
    }
    abort_.request(reason);
    changed_.notify_all();
  }

  void schedule_tick() {
    timer_.expires_after(ticker_.interval());
    timer_.async_wait([this](error_code cancelled) {
      if (cancelled || stopping_) {
        return;
      }
      const Nanoseconds elapsed = ticker_.elapsed();
      if (ticker_.heartbeat_due(elapsed)) {
        connection_->send(encode_empty(FrameType::heartbeat));
      }
      const Nanoseconds limit = silence_limit(spec_.timeout);
      if (connection_->open() && connection_->add_silence(elapsed) >= limit) {
        connection_->close();
        on_closed(*connection_, fmt::format("silent for {:.1f} s", seconds(limit.count())));
      }
      schedule_tick();
    });
  }

  const JobSpec spec_;
  const int member_;
  const std::string hub_;
  AbortToken& abort_;
  const int uncaught_ = std::uncaught_exceptions();
  asio::io_context io_;
  asio::steady_timer timer_;
  Ticker ticker_;
  std::shared_ptr<JobConnection> connection_;
  bool stopping_ = false;
  std::array<std::optional<GroupCommunicator>, kJobGroups> groups_;

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::array<std::optional<GatherResult>, kJobGroups> results_;
  std::exception_ptr over_;  ///< why the job ended
  bool welcome_ = false;
  bool left_ = false;  ///< said goodbye or failed
  bool failing_ = false;
  bool told_ = false;  ///< the hub knows and says why the job ended
  bool closed_ = false;
  std::thread thread_;
};

JobMember::JobMember(const JobSpec& spec, int member, const std::string& host, std::uint16_t port,
                     AbortToken& abort)
    : impl_(std::make_unique<Impl>(spec, member, host, port, abort)) {}
JobMember::~JobMember() = default;
Communicator* JobMember::workers() noexcept {
  return impl_->workers();
}
Communicator& JobMember::everyone() noexcept {
  return impl_->everyone();
}
std::exception_ptr JobMember::fail(const std::string& reason) noexcept {
  return fail(Error(reason));
}
std::exception_ptr JobMember::fail(const std::exception& error) noexcept {
  return impl_->fail(error);
}

}  // namespace paceline
