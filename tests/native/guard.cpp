// operator new, for LD_PRELOAD: a page that nobody may touch begins where a block ends, so that a read behind its end
// ends the program. A sanitizer sees what is written in the source; this sees what the compiler made of it.
#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace {

constexpr size_t kPage = 4096, kHead = 16;  // before every block: how much is mapped

}  // namespace

void* operator new(size_t size) {
  const size_t rounded = (size + kHead - 1) / kHead * kHead, bytes = (kHead + rounded + kPage - 1) / kPage * kPage;
  void* mapped = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  char* end = static_cast<char*>(mapped) + bytes;
  mprotect(end, kPage, PROT_NONE);
  size_t* head = reinterpret_cast<size_t*>(end - rounded - kHead);
  head[0] = bytes;
  head[1] = rounded;
  return head + 2;
}
void operator delete(void* block) noexcept {
  if (!block) return;
  const size_t* head = static_cast<size_t*>(block) - 2;
  munmap(static_cast<char*>(block) + head[1] - head[0], head[0] + kPage);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }
