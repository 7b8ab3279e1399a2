// Scratch buffers, which are aligned to a cache line, not initialised, and freed at the end of their
// scope.
#pragma once

#include <cstddef>
#include <new>

namespace qkv {
namespace QKV_VARIANT {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t count) { need(count); }
  ~Buffer() { drop(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Makes room for `count` elements. If the buffer has to grow, its contents are lost.
  void need(size_t count) {
    if (count <= count_) return;
    drop();
    data_ = static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64)));
    count_ = count;
  }
  T* data() const { return data_; }
  T& operator[](size_t k) const { return data_[k]; }

 private:
  void drop() {
    ::operator delete(data_, std::align_val_t(64));
    data_ = nullptr;
    count_ = 0;
  }
  T* data_ = nullptr;
  size_t count_ = 0;
};

// An array of zero-initialised objects, such as counters and slots.
template <class T>
class Objects {
 public:
  explicit Objects(size_t count) : all_(new T[count]()) {}
  ~Objects() { delete[] all_; }
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  T& operator[](size_t k) const { return all_[k]; }

 private:
  T* all_;
};

}  // namespace QKV_VARIANT
}  // namespace qkv
