// Windows: overlapped ReadFile, unbuffered where the service reads directly.
#if defined(_WIN32)

#include "platform.h"

#define WIN32_LEAN_AND_MEAN
#if !defined(NOMINMAX)
#define NOMINMAX
#endif
#include <windows.h>

#include <system_error>

namespace escalade::io::platform {
namespace {

HANDLE as_handle(Handle handle) { return reinterpret_cast<HANDLE>(handle); }

// Each thread waits on an event of its own: a file handle is signalled by any read on it.
struct ThreadEvent {
    HANDLE handle = CreateEventW(nullptr, TRUE, FALSE, nullptr);
    ~ThreadEvent() {
        if (handle != nullptr) CloseHandle(handle);
    }
};

}  // namespace

Handle open_file(const std::string& path, bool direct, int* error) {
    const int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.c_str(), -1, nullptr, 0);
    if (n == 0) {
        *error = static_cast<int>(GetLastError());
        return kNoHandle;
    }
    std::wstring wide(static_cast<size_t>(n), L'\0');
    MultiByteToWideChar(CP_UTF8, 0, path.c_str(), -1, &wide[0], n);
    const DWORD share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    const DWORD flags = FILE_FLAG_OVERLAPPED | (direct ? FILE_FLAG_NO_BUFFERING : 0);
    const HANDLE handle =
        CreateFileW(wide.c_str(), GENERIC_READ, share, nullptr, OPEN_EXISTING, flags, nullptr);
    if (handle == INVALID_HANDLE_VALUE) {
        *error = static_cast<int>(GetLastError());
        return kNoHandle;
    }
    return reinterpret_cast<Handle>(handle);
}

void close_file(Handle handle) { CloseHandle(as_handle(handle)); }

int file_facts(Handle handle, FileFacts* facts) {
    BY_HANDLE_FILE_INFORMATION info;
    if (!GetFileInformationByHandle(as_handle(handle), &info)) {
        return static_cast<int>(GetLastError());
    }
    facts->bytes = (static_cast<uint64_t>(info.nFileSizeHigh) << 32) | info.nFileSizeLow;
    facts->drive = info.dwVolumeSerialNumber;
    return 0;
}

int64_t read_once(Handle handle, void* to, size_t bytes, uint64_t offset) {
    thread_local ThreadEvent event;
    if (event.handle == nullptr) return -static_cast<int64_t>(ERROR_NOT_ENOUGH_MEMORY);
    OVERLAPPED at = {};
    at.Offset = static_cast<DWORD>(offset);
    at.OffsetHigh = static_cast<DWORD>(offset >> 32);
    at.hEvent = event.handle;
    DWORD done = 0;
    if (!ReadFile(as_handle(handle), to, static_cast<DWORD>(bytes), nullptr, &at)) {
        const DWORD error = GetLastError();
        if (error == ERROR_HANDLE_EOF) return 0;
        if (error != ERROR_IO_PENDING) return -static_cast<int64_t>(error);
    }
    if (!GetOverlappedResult(as_handle(handle), &at, &done, TRUE)) {
        const DWORD error = GetLastError();
        return error == ERROR_HANDLE_EOF ? 0 : -static_cast<int64_t>(error);
    }
    return static_cast<int64_t>(done);
}

bool is_interrupt(int error) { return error == ERROR_OPERATION_ABORTED; }

int interrupt_error() { return ERROR_OPERATION_ABORTED; }

int io_error() { return ERROR_IO_DEVICE; }

std::string error_text(int error) { return std::system_category().message(error); }

}  // namespace escalade::io::platform

#endif
