// What the native tests share: seeded numbers, exact-size buffers and the way to fail.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

static inline u64 &seed_in_use()
{
    static u64 seed = 0;
    return seed;
}

static inline u64 seed_of(int argc, char **argv)
{
    seed_in_use() = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1;
    return seed_in_use();
}

[[noreturn]] __attribute__((format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (seed %llu)\n", seed_in_use());
    exit(1);
}

// SplitMix64.
class Draw {
  public:
    explicit Draw(u64 seed) : state(seed) {}
    u64 next()
    {
        u64 z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    u64 below(u64 limit) { return next() % limit; }
    void fill(u8 *bytes, u64 len)
    {
        for (u64 i = 0; i < len; i++) {
            bytes[i] = (u8)next();
        }
    }

  private:
    u64 state;
};

// A heap block of exactly `size` bytes at a 16-byte boundary, as device memory begins; a touch of
// the byte after it is an error that AddressSanitizer reports.
class ExactBuffer {
  public:
    explicit ExactBuffer(u64 size) : bytes((u8 *)malloc(size)), length(size) {}
    ~ExactBuffer() { free(bytes); }
    ExactBuffer(const ExactBuffer &) = delete;
    ExactBuffer &operator=(const ExactBuffer &) = delete;
    u8 *data() { return bytes; }
    u64 size() const { return length; }

  private:
    u8 *bytes;
    u64 length;
};
