// What kernels need of the C++ runtime, for libraries that come with charlm: the whole one would make each four times
// as large. Without memory the process ends.

#include <cstdlib>
#include <new>

namespace {

void* checked(void* memory) {
  if (!memory) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return checked(std::malloc(size ? size : 1)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return std::malloc(size ? size : 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#if defined(_WIN32)
void* operator new(std::size_t size, std::align_val_t alignment) {
  return checked(_aligned_malloc(size, static_cast<std::size_t>(alignment)));
}
void operator delete(void* memory, std::align_val_t) noexcept { _aligned_free(memory); }
#else
void* operator new(std::size_t size, std::align_val_t alignment) {
  const std::size_t step = static_cast<std::size_t>(alignment);
  return checked(std::aligned_alloc(step, (size + step - 1) / step * step));
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
#endif
void operator delete(void* memory, std::size_t, std::align_val_t alignment) noexcept { operator delete(memory, alignment); }

const std::nothrow_t std::nothrow{};

// A container's limit was passed: an error of charlm's.
_LIBCPP_BEGIN_NAMESPACE_STD
[[noreturn]] void __libcpp_verbose_abort(const char*, ...) noexcept { std::abort(); }
_LIBCPP_END_NAMESPACE_STD

#if defined(__linux__)
extern "C" {
// Destroys thread-local variables when a thread ends; glibc has it by another name.
int __cxa_thread_atexit_impl(void (*destroy)(void*), void* object, void* library);
int __cxa_thread_atexit(void (*destroy)(void*), void* object, void* library) {
  return __cxa_thread_atexit_impl(destroy, object, library);
}
}
#endif
