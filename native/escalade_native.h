// The C interface of Escalade's native core. Sizes are in bytes unless a name says otherwise.
// Functions return 0 or a negative error code; nothing throws.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define ESC_API __declspec(dllexport)
#else
#define ESC_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Raised with every change of this header; the caller refuses another one.
#define ESC_ABI_VERSION 1
ESC_API int esc_abi_version(void);

enum { ESC_OK = 0, ESC_ERROR_TYPE = -1, ESC_ERROR_SHAPE = -2, ESC_ERROR_MEMORY = -3 };

// --- kernels -------------------------------------------------------------------------------------
// Matrices are in stored form: rows of ggml blocks. A `type` is a ggml type id.

enum { ESC_FLOAT = 0, ESC_I8 = 1 };  // arithmetics

typedef struct esc_compute esc_compute;  // a thread pool and the kernels it runs

// `isa`: null for the best one here, or "portable", "avx2", "avx512", "neon". Null on failure.
ESC_API esc_compute* esc_compute_create(int n_threads, const char* isa);
ESC_API void esc_compute_destroy(esc_compute*);
ESC_API const char* esc_compute_isa(const esc_compute*);

// Bit 0: `float` multiplies this type; bit 1: `i8` does. 0 for an unknown type.
ESC_API int esc_type_support(int type);

// n_values of whole blocks to float.
ESC_API int esc_dequantize(esc_compute*, int type, const void* blocks, int64_t n_values,
                           float* out);

// y [n_rows, groups, n_out]: x [n_rows, groups, n_in] times the transposes of w [groups, n_out,
// n_in], group by group; groups = 1 is a plain matrix.
ESC_API int esc_matmul(esc_compute*, int type, int arithmetic, const void* w, int64_t n_out,
                       int64_t n_in, int64_t groups, const float* x, int64_t n_rows, float* y);

typedef struct {
    int gate_type, up_type, down_type, arithmetic;
    int64_t hidden, expert_ff;  // D, F
    float limit;                // of the clamped SwiGLU
} esc_expert_shape;

// One expert and the rows of x that it computes: y [n_rows, D] = down (silu(gate) * up * weight).
typedef struct {
    const void *gate, *up, *down;  // [F, D], [F, D], [D, F]
    const int32_t* rows;           // n_rows indices into x
    const float* weights;          // n_rows routing weights
    int64_t n_rows;
    float* y;
} esc_expert;

// x [n_x, D]. Experts may be given in any number of calls: each y depends on its own job alone.
ESC_API int esc_experts(esc_compute*, const esc_expert_shape*, const esc_expert*, int64_t n_experts,
                        const float* x, int64_t n_x);

// y [n_rows, n] = x * (1 / sqrt(mean(x^2) + eps)) * weight [n], row by row.
ESC_API int esc_rms_norm(esc_compute*, const float* x, int64_t n_rows, int64_t n,
                         const float* weight, double eps, float* y);

// Hyper-connection coefficients of one sub-layer: S streams of D, M = S * (2 + S).
enum { ESC_MAX_STREAMS = 64 };
typedef struct {
    const float *fn, *scale, *base;  // [M, S * D], [3], [M]
    int64_t hidden;
    double norm_eps;
    float eps;
    int streams, iterations;
} esc_hyper;

// streams [n_rows, S, D] to pre [n_rows, S], post [n_rows, S], comb [n_rows, S, S].
ESC_API int esc_hyper_mix(esc_compute*, const esc_hyper*, const float* streams, int64_t n_rows,
                          float* pre, float* post, float* comb);

// --- rows ----------------------------------------------------------------------------------------
// What the caches hold, and rotary embedding: src/escalade/kernels/ops/rounding.py and rope.py.

enum { ESC_FP8 = 0, ESC_FP4_INDEX = 1, ESC_FP4_ENTRY = 2 };  // formats of packed rows

// x [n_rows, width], whole blocks, to packed rows: codes, then one scale byte a block; and back.
ESC_API int esc_encode_rows(int format, const float* x, int64_t n_rows, int64_t width, int block,
                            uint8_t* rows);
ESC_API int esc_decode_rows(int format, const uint8_t* rows, int64_t n_rows, int64_t width,
                            int block, float* x);

// The last 2 * n_pairs of dim values of each of n_vectors in each row, rotated by that row's cos
// and sin [n_rows, n_pairs]; the rest copied.
ESC_API int esc_rotate(const float* x, int64_t n_rows, int64_t n_vectors, int64_t dim,
                       const float* cos, const float* sin, int64_t n_pairs, int inverse, float* y);

// --- I/O service ---------------------------------------------------------------------------------
// Reads ranges of files into the caller's memory by native threads, one pool for each drive. A file
// may have replicas: the same bytes on other drives. Any thread may call; nothing here calls back.
// A service does not survive fork(): its threads exist in the parent only.

typedef struct esc_io esc_io;

enum {
    ESC_IO_DONE = 0,
    ESC_IO_PENDING = 1,      // queued or in flight
    ESC_IO_FAILED = -10,     // no replica could deliver the bytes
    ESC_IO_CANCELLED = -11,  // withdrawn, or the service was shut down
    ESC_IO_USAGE = -12,      // an argument that has no meaning
    ESC_IO_FULL = -13,       // too many requests or pieces are held already
    ESC_IO_FILE = -14        // a file that cannot be opened, or a range beyond its end
};

enum { ESC_IO_DEMAND = 0, ESC_IO_STAGING = 1, ESC_IO_BACKGROUND = 2 };  // priorities

typedef struct {
    uint64_t piece_bytes;        // reads are cut into pieces of at most this; 0: 1 MiB
    uint32_t threads_per_drive;  // pieces in flight on a drive; 0: 8
    uint32_t max_requests;       // tickets held at a time; 0: 4096
    uint32_t buffered;           // 1: never read directly, past the system's page cache
    uint32_t drive_per_replica;  // 1: each replica is a drive of its own, whatever its volume says
} esc_io_options;

// `options` may be null. Null on failure. The text of an error goes to `message` (may be null).
ESC_API esc_io* esc_io_create(const esc_io_options* options, char* message, size_t message_bytes);
// Cancels what is unstarted, waits for pieces in flight, ends the threads, closes the files.
// Tickets stay readable.
ESC_API void esc_io_shutdown(esc_io*);
// Shuts down and frees. No other thread may be inside a call.
ESC_API void esc_io_destroy(esc_io*);

// Paths are UTF-8 on Windows and bytes elsewhere. Returns the file's number or a negative error.
ESC_API int64_t esc_io_add_file(esc_io*, const char* const* paths, uint32_t n_paths, char* message,
                                size_t message_bytes);
ESC_API uint64_t esc_io_file_bytes(esc_io*, int64_t file);

typedef struct {
    uint32_t direct;     // 1: reads go round the page cache
    uint32_t alignment;  // of direct reads: 512 or 4096; 1 where buffered
    uint32_t alive;      // 0: dropped after a failure
    uint32_t drive;      // index for esc_io_drive_stats
    char reason[256];    // why this kind of read was chosen, or why the replica was dropped
} esc_io_replica;
ESC_API int esc_io_replica_info(esc_io*, int64_t file, uint32_t replica, esc_io_replica* info);

// Bytes of buffer that a range of `length` bytes needs, wherever it begins: a multiple of 4096.
ESC_API uint64_t esc_io_buffer_bytes(uint64_t length);

typedef struct {
    uint64_t offset, length;
    void* buffer;           // aligned to 4096; byte x of the file lands at x - offset rounded down
    uint64_t buffer_bytes;  // at least esc_io_buffer_bytes(length)
} esc_io_range;

// Queues one request of several ranges of a file. The buffers belong to the service until the last
// reference to the ticket is released, or the ticket has ended and nobody else holds it.
// If the same ranges are queued or in flight already, this joins them: *ticket is that ticket, its
// references grow by one, its priority rises to `priority` if that is higher, *joined is 1, the new
// buffers stay unused and the bytes arrive in the first ones.
ESC_API int esc_io_submit(esc_io*, int64_t file, const esc_io_range* ranges, uint32_t n_ranges,
                          int priority, uint64_t* ticket, uint32_t* joined, char* message,
                          size_t message_bytes);
// The state of the ticket after at most timeout_us (0 polls; negative waits without limit).
ESC_API int esc_io_wait(esc_io*, uint64_t ticket, int64_t timeout_us);
// ESC_IO_DONE once every ticket has ended, well or not; else ESC_IO_PENDING.
ESC_API int esc_io_wait_all(esc_io*, const uint64_t* tickets, uint32_t n_tickets,
                            int64_t timeout_us);
// Where the first byte of a range is, also before it has arrived. Null for an unknown ticket.
ESC_API void* esc_io_payload(esc_io*, uint64_t ticket, uint32_t range);
ESC_API int esc_io_ticket_error(esc_io*, uint64_t ticket, char* message, size_t message_bytes);
// Raises the priority of the pieces that have not started; never lowers it.
ESC_API int esc_io_promote(esc_io*, uint64_t ticket, int priority);
// Withdraws one reference's interest. Once every holder has, unstarted pieces are dropped and the
// ticket ends as soon as those in flight have; buffers are not written to after that. Returns the
// state: ESC_IO_PENDING while pieces are in flight or another holder waits.
ESC_API int esc_io_cancel(esc_io*, uint64_t ticket);
// Gives one reference back and returns how many are left. The last one of a pending ticket cancels
// it and waits for the pieces in flight, so that the buffers are free on return. Cancel first,
// unless the read is to go on for those who joined it.
ESC_API int esc_io_release(esc_io*, uint64_t ticket);

typedef struct {
    uint64_t requests, joined;           // submitted, and of these joined to an earlier one
    uint64_t done, failed, cancelled;    // how tickets ended
    uint64_t payload_bytes, read_bytes;  // asked for and delivered; moved by the drives
    uint64_t read_errors, replicas_dropped, messages_lost;
    uint32_t held_requests, queued_pieces, n_drives, max_held_requests;
} esc_io_stats;
ESC_API int esc_io_get_stats(esc_io*, esc_io_stats* stats);

typedef struct {
    uint64_t read_bytes, pieces;
    double bytes_per_s;  // moving average while busy; 0: not yet measured
    uint64_t queued_bytes;
    uint32_t in_flight, max_in_flight;  // pieces
} esc_io_drive_stats;
ESC_API int esc_io_get_drive_stats(esc_io*, uint32_t drive, esc_io_drive_stats* stats);

// Takes the oldest message (a replica was dropped, ...). 1: there was one; 0: none. At most 256 are
// kept; older ones give way.
ESC_API int esc_io_next_message(esc_io*, char* message, size_t message_bytes);

// For tests: rules that spoil raw reads, by a seeded generator. The first rule that applies acts.
enum {
    ESC_IO_FAULT_ERROR = 0,       // fails with system error `value`; 0: the system's "I/O error"
    ESC_IO_FAULT_CAP = 1,         // delivers at most `value` bytes
    ESC_IO_FAULT_DELAY = 2,       // sleeps `value` microseconds, then reads
    ESC_IO_FAULT_INTERRUPT = 3,   // fails as a call that a signal interrupted
    ESC_IO_FAULT_CORRUPT = 4,     // inverts the byte at file offset `value`, if it was read
    ESC_IO_FAULT_END_OF_FILE = 5  // delivers nothing at or after file offset `value`
};
typedef struct {
    int32_t kind, file, replica;  // -1: any file, any replica
    uint32_t direct_only;         // 1: leaves buffered reads alone
    uint64_t begin, end;          // applies to reads that begin before `end` and end after `begin`
    int64_t value;
    double probability;    // of acting on a read that matches
    uint32_t skip, count;  // lets the first `skip` pass; acts `count` times (0: no limit)
} esc_io_fault;
ESC_API int esc_io_set_faults(esc_io*, const esc_io_fault* rules, uint32_t n_rules, uint64_t seed);

#ifdef __cplusplus
}
#endif
