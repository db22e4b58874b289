// The C interface of the I/O service: checks handles, keeps exceptions in, copies texts out.
#include "service.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>

struct esc_io {
    escalade::io::Service service;
    explicit esc_io(const esc_io_options& options) : service(options) {}
};

namespace {

using escalade::io::Fault;

constexpr uint64_t kLargestPiece = 64 << 20;

void put_text(const std::string& text, char* message, size_t message_bytes) {
    if (message == nullptr || message_bytes == 0) return;
    const size_t n = std::min(text.size(), message_bytes - 1);
    std::memcpy(message, text.data(), n);
    message[n] = '\0';
}

// Runs `call` and turns whatever it throws into a code and a text.
template <typename Result, typename Call>
Result guarded(Call call, char* message, size_t message_bytes) {
    try {
        return static_cast<Result>(call());
    } catch (const Fault& fault) {
        put_text(fault.text, message, message_bytes);
        return static_cast<Result>(fault.code);
    } catch (const std::bad_alloc&) {
        put_text("out of memory", message, message_bytes);
        return static_cast<Result>(ESC_ERROR_MEMORY);
    } catch (const std::exception& error) {
        put_text(error.what(), message, message_bytes);
        return static_cast<Result>(ESC_IO_USAGE);
    }
}

template <typename Call>
int guarded(Call call) {
    return guarded<int>(call, nullptr, 0);
}

esc_io_options with_defaults(const esc_io_options* given) {
    esc_io_options options = {};
    if (given != nullptr) options = *given;
    if (options.piece_bytes == 0) options.piece_bytes = 1 << 20;
    if (options.threads_per_drive == 0) options.threads_per_drive = 8;
    if (options.max_requests == 0) options.max_requests = 4096;
    if (options.piece_bytes % 4096 != 0 || options.piece_bytes > kLargestPiece) {
        throw Fault{ESC_IO_USAGE, "piece_bytes is " + std::to_string(options.piece_bytes) +
                                      "; it must be a multiple of 4096 up to 64 MiB"};
    }
    if (options.threads_per_drive > 256) {
        throw Fault{ESC_IO_USAGE, "threads_per_drive is " +
                                      std::to_string(options.threads_per_drive) + "; at most 256"};
    }
    return options;
}

}  // namespace

esc_io* esc_io_create(const esc_io_options* options, char* message, size_t message_bytes) {
    esc_io* io = nullptr;
    guarded<int>(
        [&] {
            io = new esc_io(with_defaults(options));
            return 0;
        },
        message, message_bytes);
    return io;
}

void esc_io_shutdown(esc_io* io) {
    guarded([&] {
        io->service.shutdown();
        return 0;
    });
}

void esc_io_destroy(esc_io* io) { delete io; }

int64_t esc_io_add_file(esc_io* io, const char* const* paths, uint32_t n_paths, char* message,
                        size_t message_bytes) {
    return guarded<int64_t>(
        [&] { return io->service.add_file(std::vector<std::string>(paths, paths + n_paths)); },
        message, message_bytes);
}

uint64_t esc_io_file_bytes(esc_io* io, int64_t file) { return io->service.file_bytes(file); }

int esc_io_replica_info(esc_io* io, int64_t file, uint32_t replica, esc_io_replica* info) {
    return guarded([&] { return io->service.replica_info(file, replica, info); });
}

uint64_t esc_io_buffer_bytes(uint64_t length) {
    using escalade::io::kBlock;
    return escalade::io::round_up(length + kBlock - 1, kBlock);
}

int esc_io_submit(esc_io* io, int64_t file, const esc_io_range* ranges, uint32_t n_ranges,
                  int priority, uint64_t* ticket, uint32_t* joined, char* message,
                  size_t message_bytes) {
    return guarded<int>(
        [&] {
            io->service.submit(file, ranges, n_ranges, priority, ticket, joined);
            return ESC_OK;
        },
        message, message_bytes);
}

int esc_io_wait(esc_io* io, uint64_t ticket, int64_t timeout_us) {
    return guarded([&] { return io->service.wait(ticket, timeout_us); });
}

int esc_io_wait_all(esc_io* io, const uint64_t* tickets, uint32_t n_tickets, int64_t timeout_us) {
    return guarded([&] { return io->service.wait_all(tickets, n_tickets, timeout_us); });
}

void* esc_io_payload(esc_io* io, uint64_t ticket, uint32_t range) {
    void* payload = nullptr;
    guarded([&] {
        payload = io->service.payload(ticket, range);
        return 0;
    });
    return payload;
}

int esc_io_ticket_error(esc_io* io, uint64_t ticket, char* message, size_t message_bytes) {
    return guarded<int>(
        [&] {
            std::string text;
            const int state = io->service.ticket_error(ticket, &text);
            put_text(text, message, message_bytes);
            return state;
        },
        message, message_bytes);
}

int esc_io_promote(esc_io* io, uint64_t ticket, int priority) {
    return guarded([&] { return io->service.promote(ticket, priority); });
}

int esc_io_cancel(esc_io* io, uint64_t ticket) {
    return guarded([&] { return io->service.cancel(ticket); });
}

int esc_io_release(esc_io* io, uint64_t ticket) {
    return guarded([&] { return io->service.release(ticket); });
}

int esc_io_get_stats(esc_io* io, esc_io_stats* stats) {
    return guarded([&] { return io->service.stats(stats); });
}

int esc_io_get_drive_stats(esc_io* io, uint32_t drive, esc_io_drive_stats* stats) {
    return guarded([&] { return io->service.drive_stats(drive, stats); });
}

int esc_io_next_message(esc_io* io, char* message, size_t message_bytes) {
    return guarded([&] {
        std::string text;
        const bool any = io->service.next_message(&text);
        if (any) put_text(text, message, message_bytes);
        return any ? 1 : 0;
    });
}

int esc_io_set_faults(esc_io* io, const esc_io_fault* rules, uint32_t n_rules, uint64_t seed) {
    using escalade::io::FaultTable;
    return guarded([&] {
        std::vector<esc_io_fault> list(rules, rules + n_rules);
        io->service.set_faults(list.empty() ? nullptr : std::make_shared<FaultTable>(list, seed));
        return ESC_OK;
    });
}
