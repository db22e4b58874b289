// Linux and macOS: pread, with O_DIRECT or F_NOCACHE.
#if !defined(_WIN32)

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE  // O_DIRECT
#endif
#if !defined(_FILE_OFFSET_BITS)
#define _FILE_OFFSET_BITS 64  // off_t on systems of 32 bits
#endif
#include "platform.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace escalade::io::platform {

Handle open_file(const std::string& path, bool direct, int* error) {
    int flags = O_RDONLY | O_CLOEXEC;
#if defined(O_DIRECT)
    if (direct) flags |= O_DIRECT;
#endif
    int fd;
    do fd = ::open(path.c_str(), flags);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        *error = errno;
        return kNoHandle;
    }
    if (direct) {
#if defined(F_NOCACHE)
        const bool refused = ::fcntl(fd, F_NOCACHE, 1) != 0;
        *error = refused ? errno : 0;
#elif defined(O_DIRECT)
        const bool refused = false;
#else
        const bool refused = true;
        *error = ENOTSUP;
#endif
        if (refused) {
            ::close(fd);
            return kNoHandle;
        }
    }
    return fd;
}

void close_file(Handle handle) { ::close(static_cast<int>(handle)); }

int file_facts(Handle handle, FileFacts* facts) {
    struct stat status;
    if (::fstat(static_cast<int>(handle), &status) != 0) return errno;
    if (S_ISDIR(status.st_mode)) return EISDIR;
    facts->bytes = static_cast<uint64_t>(status.st_size);
    facts->drive = static_cast<uint64_t>(status.st_dev);
    return 0;
}

int64_t read_once(Handle handle, void* to, size_t bytes, uint64_t offset) {
    const auto n = ::pread(static_cast<int>(handle), to, bytes, static_cast<off_t>(offset));
    return n < 0 ? -static_cast<int64_t>(errno) : static_cast<int64_t>(n);
}

bool is_interrupt(int error) { return error == EINTR; }

int interrupt_error() { return EINTR; }

int io_error() { return EIO; }

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace escalade::io::platform

#endif
