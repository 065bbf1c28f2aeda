/* Bifolio: files in GPU memory, by the best path for their cache state. Generated from crates/capi. */

#ifndef BIFOLIO_H
#define BIFOLIO_H

#include <stddef.h>
#include <stdint.h>

// Open for reading.
#define BF_READ 0

// Open for reading and writing.
#define BF_WRITE 1

// With BF_WRITE: create the file if there is none.
#define BF_CREATE 2

// For writes: return only when the bytes would survive a loss of power (fdatasync).
#define BF_DURABLE 1

// Advice: nothing special.
#define BF_NORMAL 0

// Advice: read ahead from the first request on.
#define BF_SEQUENTIAL 1

// Advice: do not read ahead.
#define BF_RANDOM 2

// Advice for mappings: it will be acquired soon.
#define BF_WILLNEED 3

// Advice for mappings: it will not be acquired for a while.
#define BF_DONTNEED 4

// Beside MAP_SHARED, for bf_mmap, and for mmap itself in programs under libbifolio_preload.so: the mapping
// is on a device. It is 0x2000000: Linux uses neither this bit nor its neighbours, and ignores it beside MAP_SHARED, so that such a
// program has a mapping of the CPU's where the library is not loaded; beside MAP_SHARED_VALIDATE it refuses it.
#define BF_MAP_ONGPU 33554432

// Calls begin after what the default streams hold; how every thread begins.
#define BF_AFTER_DEFAULT_STREAMS 0

// Calls begin after what one stream holds.
#define BF_AFTER_STREAM 1

// Calls begin at once.
#define BF_AFTER_NOTHING 2

// Why a call failed; bf_last_error has the sentence. Functions that return a number of bytes return
// these negative values instead.
enum bf_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It worked.
  BF_OK = 0,
  // NULL where something is needed, text that is not UTF-8, a flag that does not exist.
  BF_ERROR_ARGUMENT = -1,
  // There is no such file or folder.
  BF_ERROR_NOT_FOUND = -2,
  // The file may not be read or written, or page faults not be handled.
  BF_ERROR_PERMISSION = -3,
  // A folder, pipe, socket or terminal.
  BF_ERROR_NOT_A_FILE = -4,
  // Offset and length do not describe a range of the file.
  BF_ERROR_RANGE = -5,
  // The destination is shorter than what should land there.
  BF_ERROR_DESTINATION = -6,
  // The file became shorter while it was being read.
  BF_ERROR_TRUNCATED = -7,
  // The operating system reported an error while reading.
  BF_ERROR_READ = -8,
  // The operating system reported an error while writing.
  BF_ERROR_WRITE = -9,
  // Not a striped set, or a damaged one.
  BF_ERROR_STRIPE = -10,
  // The file was opened for reading only.
  BF_ERROR_READ_ONLY = -11,
  // An earlier write failed; open the file again.
  BF_ERROR_LATCHED = -12,
  // The engine or device cannot serve this file.
  BF_ERROR_ENGINE = -13,
  // The device failed, or does not exist.
  BF_ERROR_DEVICE = -14,
  // The request was cancelled.
  BF_ERROR_CANCELLED = -15,
  // A profile is damaged or belongs to something else, or calibration failed.
  BF_ERROR_PROFILE = -16,
  // A bug in Bifolio; please report it with the sentence.
  BF_ERROR_PANIC = -17,
  // The request was waited for already.
  BF_ERROR_TAKEN = -18,
  // This process was forked from the one that opened the context, or made the mapping.
  BF_ERROR_FORKED = -19,
  // The device's memory, or the cache's part of it, holds no more than what is acquired already; or there are no
  // addresses left.
  BF_ERROR_MEMORY = -20,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bf_status bf_status;
#else
typedef int32_t bf_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A device and the router that moves bytes between it and files. Any number of threads may use one.
typedef struct bf_context bf_context;

// An open file or striped set ("stripe:set.toml", "stripe:512K:a,b,c"). Any number of threads may use one.
typedef struct bf_file bf_file;

// A request under way. Its device memory must stay valid until it is over (bf_request_wait, or
// bf_request_is_done says so), also when it was cancelled. One thread waits; any may ask or cancel.
typedef struct bf_request bf_request;

// Choices for bf_context_open; zero everywhere means the defaults.
typedef struct bf_options {
  // sizeof(bf_options), so that later versions may add fields.
  size_t size;
  // Threads that copy out of the page cache for one request.
  size_t threads;
  // Bytes of a pinned slot, a power of two from 65536.
  size_t slot_bytes;
  // Pinned bytes at most.
  size_t pool_bytes;
  // Page-cache bytes that may be pinned for ranges that are read again and again; UINT64_MAX for none.
  uint64_t mapped_bytes;
  // Pinned bytes at most for reading ahead; SIZE_MAX for no readahead.
  size_t readahead_bytes;
  // A file or folder: the stored profile of its file system (bifolio calibrate) is used. NULL for the
  // default costs, which are corrected by what is observed.
  const char *profile_of;
} bf_options;

// An address in device memory: a CUdeviceptr, or on the device host any address of this process.
typedef uint64_t bf_ptr;

// One extent of a batch.
typedef struct bf_extent {
  // First byte in the file.
  uint64_t offset;
  // Bytes.
  uint64_t length;
  // Where they go, from the start of the destination.
  uint64_t place;
} bf_extent;

// What has happened to memory of bf_paged_alloc since it was allocated, in blocks of 65536 bytes where it does not
// say bytes.
typedef struct bf_paged_statistics {
  // sizeof(bf_paged_statistics), set by the caller, so that later versions may add fields.
  size_t size;
  // Blocks that were touched for the first time, or had only zeroes.
  uint64_t new_blocks;
  // Blocks that came from the device.
  uint64_t fetched;
  // Blocks that left with a copy to the device.
  uint64_t stored;
  // Blocks that left without one, as the device has what is in them (before Linux 6.8).
  uint64_t dropped;
  // Blocks that left without one, as there were only zeroes in them.
  uint64_t zeroes;
  // Blocks that stayed although there were too many, as the device did not take them.
  uint64_t refused;
  // Blocks that stayed although there were too many, as direct I/O or a driver had them pinned.
  uint64_t pinned;
  // Blocks whose content is lost, as the device did not give it back.
  uint64_t lost;
  // Bytes that are in memory now.
  uint64_t resident_bytes;
  // Bytes that are on the device now.
  uint64_t device_bytes;
} bf_paged_statistics;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a device: "auto" or NULL (the first CUDA device, else the first OpenCL GPU, else "host"), "host",
// "cuda:N" or "opencl:N". options may be NULL. Close it with bf_context_close.
//
// Requires: The texts end with a zero byte; context may be written.
bf_status bf_context_open(const char *device, const struct bf_options *options, struct bf_context **context);

// Closes a context and frees its memory (bf_alloc). Files and requests that are still open keep what
// they need of it. NULL is allowed.
//
// Requires: It was opened by bf_context_open, and nobody uses it or its memory any more.
void bf_context_close(struct bf_context *context);

// The device's name, such as "cuda:0"; empty for NULL. Valid while the context is open; never freed.
//
// Requires: context is NULL or open.
const char *bf_device(const struct bf_context *context);

// Allocates device memory, for programs that have no other source of it. Free it with bf_free.
//
// Requires: context is open; memory may be written.
bf_status bf_alloc(struct bf_context *context, uint64_t length, bf_ptr *memory);

// Frees memory of bf_alloc; 0 is allowed. Requests that use it must be over.
//
// Requires: context is open, and nobody uses the memory.
bf_status bf_free(struct bf_context *context, bf_ptr memory);

// Copies from device memory to host memory, and waits for it.
//
// Requires: Both ranges are valid for length bytes.
bf_status bf_copy_to_host(struct bf_context *context, void *destination, bf_ptr source, size_t length);

// Copies from host memory to device memory, and waits for it.
//
// Requires: Both ranges are valid for length bytes.
bf_status bf_copy_from_host(struct bf_context *context,
                            bf_ptr destination,
                            const void *source,
                            size_t length);

// Measures every path between the file system of a folder and the context's device with a scratch file
// of 1 GiB, which takes some ten seconds, stores the profile for later contexts, and returns it as
// JSON. json may be NULL; free it with bf_string_free.
//
// Requires: context is open; folder ends with a zero byte; json is NULL or may be written.
bf_status bf_calibrate(struct bf_context *context, const char *folder, char **json);

// Opens a file. flags are BF_READ, BF_WRITE, or BF_WRITE | BF_CREATE. Close it with bf_close.
//
// Requires: context is open; path ends with a zero byte; file may be written.
bf_status bf_open(struct bf_context *context, const char *path, uint32_t flags, struct bf_file **file);

// Closes a file; its requests go on to their end. NULL is allowed.
//
// Requires: It was opened by bf_open and is not used any more.
void bf_close(struct bf_file *file);

// The size of a file in bytes.
//
// Requires: file is open; size may be written.
bf_status bf_size(const struct bf_file *file, uint64_t *size);

// Says how a file will be read, as posix_fadvise does: BF_NORMAL, BF_SEQUENTIAL or BF_RANDOM.
//
// Requires: file is open.
bf_status bf_advise(struct bf_file *file, uint32_t advice);

// Reads into device memory: length bytes at offset, fewer only at the end of the file, 0 beyond it.
// Returns the bytes, or a negative bf_status.
//
// Requires: file is open; destination is valid device memory of length bytes.
int64_t bf_read(struct bf_file *file, bf_ptr destination, uint64_t length, uint64_t offset);

// Writes device memory to a file: all of it or an error. flags are 0 or BF_DURABLE. Returns the bytes,
// or a negative bf_status.
//
// Requires: file is open; source is valid device memory of length bytes.
int64_t bf_write(struct bf_file *file, bf_ptr source, uint64_t length, uint64_t offset, uint32_t flags);

// Makes everything written to a file so far durable (fdatasync).
//
// Requires: file is open.
bf_status bf_sync(struct bf_file *file);

// Reads many extents by one request; they may overlap in the file but not in the destination. Extents
// that reach beyond the end are read up to it. Returns the bytes, or a negative bf_status.
//
// Requires: file is open; extents has count elements; destination is valid device memory of length bytes.
int64_t bf_read_batch(struct bf_file *file,
                      const struct bf_extent *extents,
                      size_t count,
                      bf_ptr destination,
                      uint64_t length);

// Plans a read without doing it: which engine would move which bytes, what is cached, and why, as JSON.
// Free it with bf_string_free.
//
// Requires: file is open; json may be written.
bf_status bf_explain(struct bf_file *file, uint64_t length, uint64_t offset, char **json);

// Creates a striped set: its members, which must not exist, and a descriptor; "stripe:DESCRIPTOR" then
// opens it. What was created before a failure is removed again.
//
// Requires: The texts end with a zero byte; members has count elements.
bf_status bf_stripe_create(const char *descriptor,
                           uint64_t chunk_bytes,
                           uint64_t size,
                           const char *const *members,
                           size_t count);

// Maps length bytes of a file from offset on, at most to its end, into the memory of a device, as mmap does
// into the CPU's. device is "host:N" or "cuda:N"; NULL or "auto" take the first GPU, else "host:0". prot is
// PROT_READ, or PROT_READ | PROT_WRITE for what kernels may change. flags is MAP_SHARED |
// BF_MAP_ONGPU. fd is open for reading, and for writing if prot has it; it may be closed afterwards, and is
// best closed: as long as somebody has the file open for writing, what is acquired has to be compared with it.
// offset is a multiple of 4096.
//
// The bytes have plain addresses of the device, which closed kernels and libraries can use, from bf_macquire to
// bf_mrelease; at other times nothing may touch them. All devices of a process, and all CPU processes, see one
// file, as docs/coherence.md says. A range of a file that is mapped twice on a device has one address, and is
// unmapped twice. Any number of threads may map, and use different mappings or one. End it with bf_munmap; the
// end of the process does it, too. A child of fork has none of its parent's mappings: BF_ERROR_FORKED.
//
// Requires: device is NULL or ends with a zero byte; mapping may be written.
bf_status bf_mmap(const char *device,
                  uint64_t length,
                  int prot,
                  int flags,
                  int fd,
                  uint64_t offset,
                  bf_ptr *mapping);

// Brings length bytes of a mapping up to date for kernels that are launched afterwards: what other devices have
// released and what CPU processes have written is seen, and what this device has changed and not released stays.
// ptr is any address inside the mapping. The bytes are there until they are released, which is to be done for
// each acquire with the same address and length. BF_ERROR_MEMORY if more is acquired at a time than the cache
// may have of the device's memory (BIFOLIO_CACHE_BYTES). What lies beyond the end of the file is left out.
//
// Requires: No kernel uses the bytes meanwhile.
bf_status bf_macquire(bf_ptr ptr,
                      uint64_t length);

// Publishes what kernels have changed in bytes that were acquired, to whoever acquires them next and to the
// CPU: at once with BIFOLIO_CACHE_MODE=eager, else when somebody needs them, at the latest at bf_msync and
// bf_munmap. ptr and length are those of the acquire; other bytes are refused with BF_ERROR_ARGUMENT.
//
// Requires: Kernels that use the bytes have come to their end: no stream is waited for.
bf_status bf_mrelease(bf_ptr ptr,
                      uint64_t length);

// Publishes what kernels have changed in all that is acquired of a mapping, which stays so, writes everything
// that was released of its file, by whatever device, and makes it durable, as msync with MS_SYNC does.
// ptr and length are any bytes inside the mapping.
//
// Requires: No kernel changes the mapping meanwhile.
bf_status bf_msync(bf_ptr ptr, uint64_t length);

// Says what will be done with bytes of a mapping, as madvise does: with BF_WILLNEED they are brought in the
// background as far as there is room, with BF_DONTNEED the memory of what is not acquired is given back, after
// what was released of it has been written to the file. BF_RANDOM ends bringing ahead what follows a sequence of
// acquires, BF_NORMAL begins it again. ptr and length are any bytes inside the mapping.
bf_status bf_madvise(bf_ptr ptr,
                     uint64_t length,
                     uint32_t advice);

// Ends a mapping, all of it: mapping and length are those of bf_mmap. What was changed and not released is
// discarded; discarded of bf_cache_stats counts the pages. What was released reaches the file, at the latest
// when nothing of the file is mapped any more: if that fails, the last bf_munmap says so (BF_ERROR_WRITE). The
// mapping has ended then as well, and what cannot be written is tried again until the process ends.
//
// Requires: No kernel uses the mapping any more.
bf_status bf_munmap(bf_ptr mapping,
                    uint64_t length);

// What the cache of this process holds on each device that something was mapped on, and what has happened to
// pages since it was made, as JSON; the words are those of bifolio cache stat --json. Free it with
// bf_string_free.
//
// Requires: json may be written.
bf_status bf_cache_stats(char **json);

// Says which work comes before the calling thread's later calls with device memory that name no stream
// (bf_read, bf_write, bf_read_batch, their bf_submit_ forms, bf_copy_to_host, bf_copy_from_host).
//
// With BF_AFTER_DEFAULT_STREAMS, as it is at first, they begin after what the legacy default stream and the default
// streams of threads hold when they are called, and all streams that were not made non-blocking, as cudaMemcpy does:
// a fill that was enqueued there before is over, and so is a kernel that makes what is written. With
// BF_AFTER_STREAM they begin after what stream (a CUstream of the context's device) holds, and with
// BF_AFTER_NOTHING at once, for programs that have waited by themselves. stream is ignored but with
// BF_AFTER_STREAM.
//
// While a stream that was not made non-blocking is captured into a graph, calls that begin after the default streams are
// refused with BF_ERROR_DEVICE: waiting would end the capture.
//
// Requires: stream is live as long as calls of this thread begin after it.
bf_status bf_order_after(uint32_t what,
                         void *stream);

// Allocates length bytes of host memory, of which at most budget are in memory at a time, at least 524288. What has
// not been used for longest is in the memory of a device, at most device_bytes of it, where 0 stands for all of
// length. For programs that need more memory than there is, and are not to use the system's swap. device is
// "host:N" or "cuda:N"; NULL or "auto" take the first GPU, else "host:0". The memory begins as zeroes, at a multiple of
// 65536. Any number of threads may use it. Free it with bf_paged_free; the end of the process does it, too.
//
// A thread that touches bytes that are elsewhere waits for some microseconds. The device has their only copy: if it
// does not give one back, the thread gets SIGBUS, and bf_paged_trouble says why. A child of fork has none of the
// memory: SIGSEGV there, and BF_ERROR_FORKED. Before Linux 6.8 nothing may write to it past the page table: read
// files into it without O_DIRECT there, and do not register it with a device or an adapter.
//
// BF_ERROR_PERMISSION if the kernel does not let this process handle page faults (userfaultfd), as in containers
// whose seccomp profile forbids it; BF_ERROR_MEMORY if there are not so many addresses.
//
// Requires: device is NULL or ends with a zero byte; memory may be written.
bf_status bf_paged_alloc(const char *device,
                         uint64_t length,
                         uint64_t budget,
                         uint64_t device_bytes,
                         void **memory);

// Frees memory of bf_paged_alloc, and what of it is on the device; NULL is allowed.
//
// Requires: Nobody uses the memory any more.
bf_status bf_paged_free(void *memory);

// From now on at most budget bytes may be in memory, at least 524288; others leave within moments. memory is what
// bf_paged_alloc has returned.
bf_status bf_paged_set_budget(void *memory,
                              uint64_t budget);

// What has happened to memory of bf_paged_alloc. statistics->size has to be set. Numbers are of a moment ago.
//
// Requires: statistics is NULL, or has as many bytes as its first field says.
bf_status bf_paged_stats(void *memory,
                         struct bf_paged_statistics *statistics);

// What went wrong first with memory of bf_paged_alloc since this was asked last: a sentence that is freed with
// bf_string_free, or NULL where nothing did.
//
// Requires: sentence may be written.
bf_status bf_paged_trouble(void *memory,
                           char **sentence);

// bf_read, carried out while the caller goes on.
//
// Requires: file is open; destination is valid until the request is over; request may be written.
bf_status bf_submit_read(struct bf_file *file,
                         bf_ptr destination,
                         uint64_t length,
                         uint64_t offset,
                         struct bf_request **request);

// bf_read_batch, carried out while the caller goes on. extents may be freed at
// once.
//
// Requires: As for bf_read_batch; destination is valid until the request is over; request may be written.
bf_status bf_submit_batch(struct bf_file *file,
                          const struct bf_extent *extents,
                          size_t count,
                          bf_ptr destination,
                          uint64_t length,
                          struct bf_request **request);

// bf_write, carried out while the caller goes on. Requests submitted later for the
// same bytes of this file come after it.
//
// Requires: file is open; source is valid until the request is over; request may be written.
bf_status bf_submit_write(struct bf_file *file,
                          bf_ptr source,
                          uint64_t length,
                          uint64_t offset,
                          uint32_t flags,
                          struct bf_request **request);

// Reads in the order of a stream of the caller's (a CUstream): the bytes land after what is enqueued on
// it already and before what is enqueued later, although they have not been read yet when this returns.
//
// Requires: As for bf_submit_read; stream is a live stream of the context's device until the request is over.
bf_status bf_read_on_stream(struct bf_file *file,
                            void *stream,
                            bf_ptr destination,
                            uint64_t length,
                            uint64_t offset,
                            struct bf_request **request);

// Whether a request is over: 1, 0, or a negative bf_status.
//
// Requires: request is live.
int32_t bf_request_is_done(const struct bf_request *request);

// Blocks until a request is over. Returns its bytes, or a negative bf_status; once, then BF_ERROR_TAKEN.
//
// Requires: request is live.
int64_t bf_request_wait(struct bf_request *request);

// Asks a request to end early; wait for it all the same.
//
// Requires: request is live.
bf_status bf_request_cancel(struct bf_request *request);

// Frees a request. One that is still under way is cancelled and waited for, so that its memory is free
// afterwards. NULL is allowed.
//
// Requires: It was returned by this library and is not used any more.
void bf_request_free(struct bf_request *request);

// The version of the library, such as "0.1.0". Static; never freed.
const char *bf_version(void);

// The sentence of this thread's latest failure, with file, offset and device; empty before the first.
// Valid until the thread's next failure; never freed.
const char *bf_last_error(void);

// Frees a string that a call has returned; NULL is allowed.
//
// Requires: It was returned by a call of this library that says so, and is not freed twice.
void bf_string_free(char *string);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BIFOLIO_H */
