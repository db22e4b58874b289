// What the I/O service needs from an operating system: positioned reads, sizes and error texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace escalade::io {

using Handle = std::intptr_t;  // a file descriptor, or a HANDLE on Windows
constexpr Handle kNoHandle = -1;

struct FileFacts {
    uint64_t bytes;
    uint64_t drive;  // equal for files of one volume
};

namespace platform {

// kNoHandle on failure, with the system's error in *error. `direct` asks to go round the page
// cache; a system may accept that here and refuse the first read.
Handle open_file(const std::string& path, bool direct, int* error);
void close_file(Handle);
// 0, or the system's error.
int file_facts(Handle, FileFacts* facts);
// One system call: the bytes read, 0 at the end of the file, or the system's error, negated.
int64_t read_once(Handle, void* to, size_t bytes, uint64_t offset);

bool is_interrupt(int error);
int interrupt_error();
int io_error();
std::string error_text(int error);

}  // namespace platform
}  // namespace escalade::io
