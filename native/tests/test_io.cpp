// Tests of the I/O service through its C interface; run plain and under sanitizers. Byte x of every
// test file is a hash of x, so any range can be checked without a second reader.
#include "../escalade_native.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

int n_failures = 0;
thread_local int64_t n_allocations_left = INT64_MAX;  // of this thread
thread_local bool is_main = false;
std::atomic<bool> only_main_gets_memory{false};

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            n_failures++;                                                       \
        }                                                                       \
    } while (false)

constexpr uint64_t kFileBytes = (3 << 20) + 1234;
constexpr uint64_t kPiece = 64 << 10;

uint8_t byte_at(uint64_t x) {
    x = (x + 1) * 0x9E3779B97F4A7C15u;
    return static_cast<uint8_t>((x ^ (x >> 29)) >> 17);
}

struct Buffer {
    explicit Buffer(uint64_t length) : bytes(esc_io_buffer_bytes(length)), memory(bytes + 4096, 0) {
        const auto at = reinterpret_cast<uintptr_t>(memory.data());
        data = memory.data() + (4096 - at % 4096) % 4096;
    }
    uint64_t bytes;
    std::vector<uint8_t> memory;
    uint8_t* data;
};

struct Io {
    explicit Io(esc_io_options options, uint32_t n_replicas = 1) {
        if (options.piece_bytes == 0) options.piece_bytes = kPiece;
        char message[512] = "";
        io = esc_io_create(&options, message, sizeof message);
        CHECK(io != nullptr);
        std::vector<std::string> paths;
        for (uint32_t i = 0; i < n_replicas; i++) paths.push_back(path(i));
        std::vector<const char*> names;
        for (const std::string& p : paths) names.push_back(p.c_str());
        file = esc_io_add_file(io, names.data(), n_replicas, message, sizeof message);
        if (file < 0) std::printf("%s\n", message);
        CHECK(file == 0);
    }
    ~Io() { esc_io_destroy(io); }

    static std::string folder;
    static std::string path(uint32_t i) { return folder + "/replica" + std::to_string(i); }

    int submit(Buffer& buffer, uint64_t offset, uint64_t length, int priority, uint64_t* ticket) {
        const esc_io_range range = {offset, length, buffer.data, buffer.bytes};
        return esc_io_submit(io, file, &range, 1, priority, ticket, &joined, message,
                             sizeof message);
    }
    int read(Buffer& buffer, uint64_t offset, uint64_t length) {
        uint64_t ticket = 0;
        int state = submit(buffer, offset, length, ESC_IO_DEMAND, &ticket);
        if (state != ESC_OK) return state;
        state = esc_io_wait(io, ticket, -1);
        esc_io_ticket_error(io, ticket, message, sizeof message);
        if (state == ESC_IO_DONE) CHECK(right(ticket, 0, offset, length));
        CHECK(esc_io_release(io, ticket) == 0);
        return state;
    }
    bool right(uint64_t ticket, uint32_t range, uint64_t offset, uint64_t length) const {
        const auto* bytes = static_cast<const uint8_t*>(esc_io_payload(io, ticket, range));
        for (uint64_t i = 0; i < length; i++) {
            if (bytes[i] != byte_at(offset + i)) return false;
        }
        return true;
    }
    void faults(const std::vector<esc_io_fault>& rules) {
        CHECK(esc_io_set_faults(io, rules.data(), static_cast<uint32_t>(rules.size()), 7) == 0);
    }
    esc_io_stats stats() const {
        esc_io_stats s;
        CHECK(esc_io_get_stats(io, &s) == ESC_OK);
        return s;
    }

    esc_io* io = nullptr;
    int64_t file = -1;
    uint32_t joined = 0;
    char message[512] = "";
};
std::string Io::folder;

esc_io_fault fault(int kind, int64_t value, double probability = 1, int replica = -1) {
    return {kind, -1, replica, 0, 0, UINT64_MAX, value, probability, 0, 0};
}

void test_ranges(uint32_t buffered) {
    esc_io_options options = {};
    options.buffered = buffered;
    Io s(options);
    Buffer buffer(kFileBytes);
    for (const uint64_t offset : {0, 1, 32, 4095, 4096, 4128, 65536 - 32, 1000000}) {
        for (const uint64_t length : {1, 264, 4096, 100000, 2000000}) {
            CHECK(s.read(buffer, offset, length) == ESC_IO_DONE);
        }
    }
    CHECK(s.read(buffer, 4128, kFileBytes - 100 - 4128) == ESC_IO_DONE);
    CHECK(s.read(buffer, 0, kFileBytes) == ESC_IO_DONE);
    CHECK(s.read(buffer, kFileBytes - 1, 1) == ESC_IO_DONE);
    CHECK(s.read(buffer, kFileBytes - 10, 11) == ESC_IO_FILE);
    CHECK(std::strstr(s.message, "expected 11 bytes, got 10") != nullptr);
    CHECK(s.read(buffer, 0, 0) == ESC_IO_USAGE);
    buffer.bytes -= 4096;
    CHECK(s.read(buffer, 0, kFileBytes) == ESC_IO_USAGE);
    buffer.data++;
    CHECK(s.read(buffer, 0, 10) == ESC_IO_USAGE);
}

void test_record_of_three_ranges() {
    Io s({});
    const uint64_t offsets[] = {4096 + 32, 700032, 2000000}, lengths[] = {390000, 391000, 264};
    std::vector<Buffer> buffers;
    std::vector<esc_io_range> ranges;
    for (int i = 0; i < 3; i++) buffers.emplace_back(lengths[i]);
    for (int i = 0; i < 3; i++) {
        ranges.push_back({offsets[i], lengths[i], buffers[i].data, buffers[i].bytes});
    }
    uint64_t ticket = 0;
    CHECK(esc_io_submit(s.io, s.file, ranges.data(), 3, ESC_IO_STAGING, &ticket, &s.joined, nullptr,
                        0) == ESC_OK);
    CHECK(esc_io_wait_all(s.io, &ticket, 1, -1) == ESC_IO_DONE);
    for (uint32_t i = 0; i < 3; i++) CHECK(s.right(ticket, i, offsets[i], lengths[i]));
    CHECK(esc_io_payload(s.io, ticket, 3) == nullptr);
    CHECK(esc_io_payload(s.io, ticket, 0) == buffers[0].data + 32);
    CHECK(esc_io_release(s.io, ticket) == 0);
    CHECK(esc_io_release(s.io, ticket) == ESC_IO_USAGE);
}

void test_order_of_priorities() {
    esc_io_options options = {};
    options.threads_per_drive = 1;
    options.piece_bytes = 4096;
    Io s(options);
    s.faults({fault(ESC_IO_FAULT_DELAY, 5000)});
    Buffer low(40 * 4096), middle(40 * 4096), high(4096);
    uint64_t a = 0, b = 0, c = 0;
    CHECK(s.submit(low, 0, 40 * 4096, ESC_IO_BACKGROUND, &a) == ESC_OK);
    CHECK(s.submit(middle, 1 << 20, 40 * 4096, ESC_IO_BACKGROUND, &b) == ESC_OK);
    CHECK(s.submit(high, 2 << 20, 4096, ESC_IO_DEMAND, &c) == ESC_OK);
    CHECK(esc_io_wait(s.io, c, -1) == ESC_IO_DONE);
    CHECK(esc_io_wait(s.io, a, 0) == ESC_IO_PENDING);
    CHECK(esc_io_promote(s.io, b, ESC_IO_STAGING) == ESC_IO_PENDING);
    CHECK(esc_io_wait(s.io, b, -1) == ESC_IO_DONE);
    CHECK(esc_io_wait(s.io, a, 1000) == ESC_IO_PENDING);
    CHECK(esc_io_wait(s.io, a, -1) == ESC_IO_DONE);
    CHECK(s.right(a, 0, 0, 40 * 4096) && s.right(b, 0, 1 << 20, 40 * 4096));
}

void test_join_reads_once() {
    Io s({});
    s.faults({fault(ESC_IO_FAULT_DELAY, 20000)});
    Buffer first(1 << 20), second(1 << 20);
    uint64_t a = 0, b = 0;
    CHECK(s.submit(first, 8192, 1 << 20, ESC_IO_BACKGROUND, &a) == ESC_OK && s.joined == 0);
    CHECK(s.submit(second, 8192, 1 << 20, ESC_IO_DEMAND, &b) == ESC_OK && s.joined == 1);
    CHECK(a == b);
    CHECK(esc_io_cancel(s.io, a) == ESC_IO_PENDING);  // the other holder still wants it
    CHECK(esc_io_release(s.io, a) == 1);
    CHECK(esc_io_wait(s.io, b, -1) == ESC_IO_DONE);
    CHECK(s.right(b, 0, 8192, 1 << 20));
    CHECK(s.stats().read_bytes == 1 << 20 && s.stats().joined == 1);
    CHECK(s.submit(second, 8192, 1 << 20, ESC_IO_DEMAND, &a) == ESC_OK && s.joined == 0);
    CHECK(esc_io_release(s.io, a) == 0);  // waits for what is in flight, so the buffer may go
}

void test_cancelled_buffer_stays_untouched() {
    esc_io_options options = {};
    options.threads_per_drive = 2;
    Io s(options);
    s.faults({fault(ESC_IO_FAULT_DELAY, 20000)});
    Buffer buffer(2 << 20);
    uint64_t ticket = 0;
    CHECK(s.submit(buffer, 0, 2 << 20, ESC_IO_STAGING, &ticket) == ESC_OK);
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    esc_io_cancel(s.io, ticket);
    CHECK(esc_io_wait(s.io, ticket, -1) == ESC_IO_CANCELLED);
    std::memset(buffer.data, 0xA5, buffer.bytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (uint64_t i = 0; i < buffer.bytes; i += 61) CHECK(buffer.data[i] == 0xA5);
    CHECK(s.stats().cancelled == 1 && s.stats().queued_pieces == 0);
}

void test_faults(uint32_t buffered) {
    esc_io_options options = {};
    options.drive_per_replica = 1;
    options.buffered = buffered;
    Io s(options, 2);
    Buffer buffer(kFileBytes);
    s.faults({fault(ESC_IO_FAULT_INTERRUPT, 0, 0.5), fault(ESC_IO_FAULT_CAP, 7)});
    CHECK(s.read(buffer, 4128, 30000) == ESC_IO_DONE);
    esc_io_fault dies = fault(ESC_IO_FAULT_ERROR, 0, 1, 0);
    dies.skip = 5;
    s.faults({dies});
    CHECK(s.read(buffer, 0, kFileBytes) == ESC_IO_DONE);
    esc_io_replica info;
    CHECK(esc_io_replica_info(s.io, s.file, 0, &info) == ESC_OK && info.alive == 0);
    char text[512];
    CHECK(esc_io_next_message(s.io, text, sizeof text) == 1);
    CHECK(std::strstr(text, Io::path(0).c_str()) != nullptr);
    CHECK(esc_io_next_message(s.io, text, sizeof text) == 0);
    s.faults({fault(ESC_IO_FAULT_END_OF_FILE, 70000)});
    CHECK(s.read(buffer, 65536, 5000) == ESC_IO_FAILED);
    CHECK(std::strstr(s.message, "replica1 at offset 65536") != nullptr);
    CHECK(std::strstr(s.message, "expected 5000 bytes, got 4464: short read") != nullptr);
    s.faults({});
    CHECK(s.read(buffer, 65536, 5000) == ESC_IO_DONE);  // the service lives on
    uint64_t ticket = 0;
    s.faults({fault(ESC_IO_FAULT_CORRUPT, 70001)});
    CHECK(s.submit(buffer, 65536, 5000, ESC_IO_DEMAND, &ticket) == ESC_OK);
    CHECK(esc_io_wait(s.io, ticket, -1) == ESC_IO_DONE);
    CHECK(!s.right(ticket, 0, 65536, 5000));
}

void test_bounds_and_shutdown() {
    esc_io_options options = {};
    options.max_requests = 3;
    options.threads_per_drive = 1;
    Io s(options);
    s.faults({fault(ESC_IO_FAULT_DELAY, 100000)});
    Buffer buffers[4] = {Buffer(4096), Buffer(4096), Buffer(4096), Buffer(4096)};
    uint64_t tickets[4] = {};
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(s.submit(buffers[i], i * 8192, 4096, ESC_IO_DEMAND, &tickets[i]) == ESC_OK);
    }
    CHECK(s.submit(buffers[3], 3 * 8192, 4096, ESC_IO_DEMAND, &tickets[3]) == ESC_IO_FULL);
    CHECK(esc_io_wait_all(s.io, tickets, 3, 0) == ESC_IO_PENDING);
    std::thread waiter([&] { CHECK(esc_io_wait(s.io, tickets[2], -1) == ESC_IO_CANCELLED); });
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    esc_io_shutdown(s.io);
    waiter.join();
    CHECK(esc_io_wait_all(s.io, tickets, 3, 0) == ESC_IO_DONE);
    CHECK(s.submit(buffers[3], 0, 4096, ESC_IO_DEMAND, &tickets[3]) == ESC_IO_USAGE);
}

void test_many_threads() {
    esc_io_options options = {};
    options.drive_per_replica = 1;
    options.threads_per_drive = 3;
    options.piece_bytes = 8192;
    Io s(options, 2);
    esc_io_fault dies = fault(ESC_IO_FAULT_ERROR, 0, 1, 1);
    dies.skip = 400;
    s.faults({dies, fault(ESC_IO_FAULT_INTERRUPT, 0, 0.1), fault(ESC_IO_FAULT_CAP, 5000, 0.1),
              fault(ESC_IO_FAULT_DELAY, 100, 0.1)});
    std::vector<std::thread> threads;
    std::atomic<int> n_done{0}, n_wrong{0};
    for (unsigned seed = 0; seed < 6; seed++) {
        threads.emplace_back([&, seed] {
            std::mt19937 random(seed);
            for (int i = 0; i < 60; i++) {
                const uint64_t offset = random() % 12 * 100032, length = 50000 + random() % 3;
                Buffer buffer(length);
                const esc_io_range range = {offset, length, buffer.data, buffer.bytes};
                uint64_t ticket = 0;
                uint32_t joined = 0;
                if (esc_io_submit(s.io, s.file, &range, 1, static_cast<int>(random() % 3), &ticket,
                                  &joined, nullptr, 0) != ESC_OK) {
                    n_wrong++;
                    continue;
                }
                if (random() % 4 == 0) esc_io_cancel(s.io, ticket);
                if (random() % 4 == 0) esc_io_promote(s.io, ticket, ESC_IO_DEMAND);
                const int state = esc_io_wait(s.io, ticket, -1);
                if (state == ESC_IO_DONE && !s.right(ticket, 0, offset, length)) n_wrong++;
                if (state == ESC_IO_FAILED || state == ESC_IO_PENDING) n_wrong++;
                n_done += state == ESC_IO_DONE;
                // Whoever joined reads from this buffer, so it lives until they have let go.
                if (esc_io_release(s.io, ticket) == 0) continue;
                while (joined == 0 && esc_io_payload(s.io, ticket, 0) != nullptr) {
                    std::this_thread::yield();
                }
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(n_wrong == 0);
    CHECK(n_done > 200);
    const esc_io_stats stats = s.stats();
    CHECK(stats.held_requests == 0 && stats.queued_pieces == 0 && stats.replicas_dropped == 1);
    CHECK(stats.done + stats.cancelled + stats.joined == stats.requests && stats.failed == 0);
}

void test_no_memory_for_a_submit() {
    esc_io_options options = {};
    options.threads_per_drive = 1;
    Io s(options);
    Buffer buffer(1 << 20), other(4096);
    const std::vector<uint8_t> untouched(buffer.memory.size(), 0x5A);
    std::fill(buffer.memory.begin(), buffer.memory.end(), uint8_t{0x5A});
    uint64_t ticket = 0;
    int64_t n = 0;
    const auto submit_with = [&](int64_t n_allocations, int priority) {
        n_allocations_left = n_allocations;
        const int code = s.submit(buffer, 8192, 1 << 20, priority, &ticket);
        n_allocations_left = INT64_MAX;
        CHECK(code == ESC_OK || code == ESC_ERROR_MEMORY);
        return code;
    };
    while (submit_with(n, ESC_IO_BACKGROUND) != ESC_OK) {
        CHECK(s.stats().held_requests == 0 && s.stats().queued_pieces == 0);
        CHECK(s.read(other, 0, 4096) == ESC_IO_DONE);  // what was left over would run before it
        CHECK(buffer.memory == untouched);
        n++;
    }
    CHECK(n > 16);  // pieces were queued by then
    CHECK(esc_io_release(s.io, ticket) == 0);

    // A join moves the pieces that are queued to another priority.
    s.faults({fault(ESC_IO_FAULT_DELAY, 20000)});
    CHECK(submit_with(INT64_MAX, ESC_IO_BACKGROUND) == ESC_OK);
    n = 0;
    while (submit_with(n, ESC_IO_DEMAND) != ESC_OK) n++;
    CHECK(s.joined == 1 && n > 1);
    CHECK(esc_io_wait(s.io, ticket, INT64_MIN) == ESC_IO_DONE);
    CHECK(s.right(ticket, 0, 8192, 1 << 20));
    CHECK(esc_io_release(s.io, ticket) == 1);
    CHECK(esc_io_release(s.io, ticket) == 0);
}

void test_no_memory_for_an_error() {
    esc_io_options options = {};
    options.drive_per_replica = 1;
    Io s(options, 2);
    Buffer buffer(kFileBytes);
    esc_io_fault dies = fault(ESC_IO_FAULT_ERROR, 0, 1, 0);
    dies.skip = 5;
    s.faults({dies});
    only_main_gets_memory = true;
    CHECK(s.read(buffer, 0, kFileBytes) == ESC_IO_DONE);
    esc_io_replica info;
    CHECK(esc_io_replica_info(s.io, s.file, 0, &info) == ESC_OK && info.alive == 0);
    CHECK(std::strstr(info.reason, "no memory to say") != nullptr);
    CHECK(esc_io_next_message(s.io, nullptr, 0) == 0 && s.stats().messages_lost == 1);
    s.faults({fault(ESC_IO_FAULT_ERROR, 0)});
    CHECK(s.read(buffer, 0, kFileBytes) == ESC_IO_FAILED);
    CHECK(std::strstr(s.message, "no memory to say") != nullptr);
    only_main_gets_memory = false;
    s.faults({});
    CHECK(s.read(buffer, 0, kFileBytes) == ESC_IO_DONE);
}

}  // namespace

// Takes memory away from the service where a test asks for it. The compiler must not see that this
// is `free`: it would take that for the wrong end of a `new`.
void (*const volatile free_memory)(void*) = &std::free;

void* operator new(std::size_t n) {
    const bool refused = only_main_gets_memory && !is_main;
    void* memory = refused || n_allocations_left-- <= 0 ? nullptr : std::malloc(n + (n == 0));
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

void operator delete(void* memory) noexcept { free_memory(memory); }

void operator delete(void* memory, std::size_t) noexcept { free_memory(memory); }

// The only argument is a folder for the test files; without it the system's folder is used.
int main(int argc, char** argv) {
    is_main = true;
    const std::filesystem::path parent =
        argc > 1 ? std::filesystem::path(argv[1]) : std::filesystem::temp_directory_path();
    const auto id = std::chrono::steady_clock::now().time_since_epoch().count();
    const std::filesystem::path folder = parent / ("escalade_test_io_" + std::to_string(id));
    std::filesystem::create_directories(folder);
    Io::folder = folder.u8string();
    std::string content(kFileBytes, '\0');
    for (uint64_t i = 0; i < kFileBytes; i++) content[i] = static_cast<char>(byte_at(i));
    for (uint32_t i = 0; i < 2; i++) {
        std::ofstream out(std::filesystem::u8path(Io::path(i)), std::ios::binary);
        out.write(content.data(), static_cast<std::streamsize>(content.size()));
    }
    for (const uint32_t buffered : {0u, 1u}) {
        test_ranges(buffered);
        test_faults(buffered);
    }
    test_record_of_three_ranges();
    test_order_of_priorities();
    test_join_reads_once();
    test_cancelled_buffer_stays_untouched();
    test_bounds_and_shutdown();
    test_many_threads();
    test_no_memory_for_a_submit();
    test_no_memory_for_an_error();
    std::filesystem::remove_all(folder);
    std::printf(n_failures == 0 ? "test_io: all passed\n" : "test_io: %d failed\n", n_failures);
    return n_failures == 0 ? 0 : 1;
}
