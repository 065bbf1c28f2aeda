/* The cuFile interface as the tests use it: declarations of our own, with the sizes and offsets that programs
 * were compiled with. Programs of yours include NVIDIA's cufile.h instead. */
#ifndef INTERFACE_H
#define INTERFACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

typedef struct {
    int err;
    int cu_err;
} CUfileError_t;

typedef void *CUfileHandle_t;
typedef void *CUfileBatchHandle_t;
typedef void *CUstream;

typedef struct {
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops;
} CUfileDescr_t;

typedef struct {
    struct {
        unsigned major_version, minor_version;
        size_t poll_thresh_size, max_direct_io_size;
        unsigned dstatusflags, dcontrolflags;
    } nvfs;
    unsigned fflags, max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size;
    unsigned max_batch_io_size, max_batch_io_timeout_msecs;
} CUfileDrvProps_t;

typedef struct {
    int mode;
    union {
        struct {
            void *devPtr_base;
            off_t file_offset, devPtr_offset;
            size_t size;
        } batch;
    } u;
    CUfileHandle_t fh;
    int opcode;
    void *cookie;
} CUfileIOParams_t;

typedef struct {
    void *cookie;
    int status;
    size_t ret;
} CUfileIOEvents_t;

typedef struct {
    void *base;
    size_t len;
} CUfileIOVec_t;

typedef struct {
    uint64_t ok, err;
} CUfileOpCounter_t;

/* As of version 1.19; programs that define OLD_STATISTICS have those of 1.15 to 1.18. */
typedef struct {
    CUfileOpCounter_t read_ops;
    CUfileOpCounter_t write_ops;
    CUfileOpCounter_t hdl_register_ops;
    CUfileOpCounter_t hdl_deregister_ops;
    CUfileOpCounter_t buf_register_ops;
    CUfileOpCounter_t buf_deregister_ops;
    uint64_t read_bytes;
    uint64_t write_bytes;
    uint64_t read_bw_bytes_per_sec;
    uint64_t write_bw_bytes_per_sec;
    uint64_t read_lat_avg_us;
    uint64_t write_lat_avg_us;
    uint64_t read_ops_per_sec;
    uint64_t write_ops_per_sec;
    uint64_t read_lat_sum_us;
    uint64_t write_lat_sum_us;
    CUfileOpCounter_t batch_submit_ops;
    CUfileOpCounter_t batch_complete_ops;
    CUfileOpCounter_t batch_setup_ops;
    CUfileOpCounter_t batch_cancel_ops;
    CUfileOpCounter_t batch_destroy_ops;
    CUfileOpCounter_t batch_enqueued_ops;
    CUfileOpCounter_t batch_posix_enqueued_ops;
    CUfileOpCounter_t batch_processed_ops;
    CUfileOpCounter_t batch_posix_processed_ops;
    CUfileOpCounter_t batch_nvfs_submit_ops;
    CUfileOpCounter_t batch_p2p_submit_ops;
    CUfileOpCounter_t batch_aio_submit_ops;
    CUfileOpCounter_t batch_iouring_submit_ops;
    CUfileOpCounter_t batch_mixed_io_submit_ops;
    CUfileOpCounter_t batch_total_submit_ops;
    uint64_t batch_read_bytes;
    uint64_t batch_write_bytes;
    uint64_t batch_read_bw_bytes;
    uint64_t batch_write_bw_bytes;
    uint64_t batch_submit_lat_avg_us;
    uint64_t batch_completion_lat_avg_us;
    uint64_t batch_submit_ops_per_sec;
    uint64_t batch_complete_ops_per_sec;
    uint64_t batch_submit_lat_sum_us;
    uint64_t batch_completion_lat_sum_us;
    uint64_t last_batch_read_bytes;
    uint64_t last_batch_write_bytes;
#ifndef OLD_STATISTICS
    CUfileOpCounter_t readv_ops;
    CUfileOpCounter_t writev_ops;
    uint64_t readv_bytes;
    uint64_t writev_bytes;
    uint64_t readv_bw_bytes_per_sec;
    uint64_t writev_bw_bytes_per_sec;
    uint64_t readv_lat_avg_us;
    uint64_t writev_lat_avg_us;
    uint64_t readv_ops_per_sec;
    uint64_t writev_ops_per_sec;
    uint64_t readv_lat_sum_us;
    uint64_t writev_lat_sum_us;
#endif
} CUfileStatsLevel1_t;

typedef struct {
    CUfileStatsLevel1_t basic;
    uint64_t read_size_kb_hist[32], write_size_kb_hist[32];
} CUfileStatsLevel2_t;

typedef struct {
    char uuid[16];
    uint64_t read_bytes;
    uint64_t read_bw_bytes_per_sec;
    uint64_t read_utilization;
    uint64_t read_duration_us;
    uint64_t n_total_reads;
    uint64_t n_p2p_reads;
    uint64_t n_nvfs_reads;
    uint64_t n_posix_reads;
    uint64_t n_unaligned_reads;
    uint64_t n_dr_reads;
    uint64_t n_sparse_regions;
    uint64_t n_inline_regions;
    uint64_t n_reads_err;
    uint64_t writes_bytes;
    uint64_t write_bw_bytes_per_sec;
    uint64_t write_utilization;
    uint64_t write_duration_us;
    uint64_t n_total_writes;
    uint64_t n_p2p_writes;
    uint64_t n_nvfs_writes;
    uint64_t n_posix_writes;
    uint64_t n_unaligned_writes;
    uint64_t n_dr_writes;
    uint64_t n_writes_err;
    uint64_t n_mmap;
    uint64_t n_mmap_ok;
    uint64_t n_mmap_err;
    uint64_t n_mmap_free;
    uint64_t reg_bytes;
} CUfilePerGpuStats_t;

typedef struct {
    CUfileStatsLevel2_t detailed;
    uint32_t num_gpus;
    CUfilePerGpuStats_t per_gpu_stats[16];
} CUfileStatsLevel3_t;

_Static_assert(sizeof(CUfileError_t) == 8 && sizeof(CUfileDescr_t) == 24, "");
_Static_assert(offsetof(CUfileDescr_t, handle) == 8 && offsetof(CUfileDescr_t, fs_ops) == 16, "");
_Static_assert(sizeof(CUfileDrvProps_t) == 56 && offsetof(CUfileDrvProps_t, fflags) == 32, "");
_Static_assert(offsetof(CUfileDrvProps_t, max_batch_io_timeout_msecs) == 52, "");
_Static_assert(sizeof(CUfileIOParams_t) == 64 && offsetof(CUfileIOParams_t, u) == 8, "");
_Static_assert(offsetof(CUfileIOParams_t, fh) == 40 && offsetof(CUfileIOParams_t, opcode) == 48, "");
_Static_assert(offsetof(CUfileIOParams_t, cookie) == 56 && offsetof(CUfileIOParams_t, u.batch.size) == 32, "");
_Static_assert(sizeof(CUfileIOEvents_t) == 24 && offsetof(CUfileIOEvents_t, ret) == 16, "");
_Static_assert(offsetof(CUfileStatsLevel1_t, read_bytes) == 96 && offsetof(CUfileStatsLevel1_t, batch_read_bytes) == 416, "");
_Static_assert(sizeof(CUfilePerGpuStats_t) == 248 && offsetof(CUfilePerGpuStats_t, n_mmap) == 208, "");
#ifndef OLD_STATISTICS
_Static_assert(sizeof(CUfileStatsLevel1_t) == 624 && offsetof(CUfileStatsLevel1_t, readv_ops) == 512, "");
_Static_assert(sizeof(CUfileStatsLevel2_t) == 1136 && sizeof(CUfileStatsLevel3_t) == 5112, "");
#else
_Static_assert(sizeof(CUfileStatsLevel1_t) == 512, "");
_Static_assert(sizeof(CUfileStatsLevel2_t) == 1024 && sizeof(CUfileStatsLevel3_t) == 5000, "");
#endif

enum { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1, CUFILE_BATCH = 1, CUFILE_READ = 0, CUFILE_WRITE = 1 };
enum { CUFILE_CANCELED = 8, CUFILE_COMPLETE = 16, CUFILE_FAILED = 64 };

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileDriverClose_v2(void);
CUfileError_t cuFileDriverClose(void);
long cuFileUseCount(void);
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *);
CUfileError_t cuFileDriverSetPollMode(bool, size_t);
CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t);
CUfileError_t cuFileDriverSetMaxCacheSize(size_t);
CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t);
CUfileError_t cuFileHandleRegister(CUfileHandle_t *, CUfileDescr_t *);
void cuFileHandleDeregister(CUfileHandle_t);
CUfileError_t cuFileBufRegister(const void *, size_t, int);
CUfileError_t cuFileBufDeregister(const void *);
ssize_t cuFileRead(CUfileHandle_t, void *, size_t, off_t, off_t);
ssize_t cuFileWrite(CUfileHandle_t, const void *, size_t, off_t, off_t);
ssize_t cuFileReadv(CUfileHandle_t, const CUfileIOVec_t *, size_t, off_t, unsigned);
ssize_t cuFileWritev(CUfileHandle_t, const CUfileIOVec_t *, size_t, off_t, unsigned);
CUfileError_t cuFileReadAsync(CUfileHandle_t, void *, size_t *, off_t *, off_t *, ssize_t *, CUstream);
CUfileError_t cuFileWriteAsync(CUfileHandle_t, void *, size_t *, off_t *, off_t *, ssize_t *, CUstream);
CUfileError_t cuFileStreamRegister(CUstream, unsigned);
CUfileError_t cuFileStreamDeregister(CUstream);
CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t *, unsigned);
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t, unsigned, CUfileIOParams_t *, unsigned);
CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t, unsigned, unsigned *, CUfileIOEvents_t *, struct timespec *);
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t);
void cuFileBatchIODestroy(CUfileBatchHandle_t);
CUfileError_t cuFileGetVersion(int *);
CUfileError_t cuFileGetParameterSizeT(int, size_t *);
CUfileError_t cuFileGetParameterBool(int, bool *);
CUfileError_t cuFileGetParameterString(int, char *, int);
CUfileError_t cuFileGetParameterMinMaxValue(int, size_t *, size_t *);
CUfileError_t cuFileSetParameterSizeT(int, size_t);
CUfileError_t cuFileSetParameterBool(int, bool);
CUfileError_t cuFileSetParameterString(int, const char *);
CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t *, const size_t *, int);
CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t *, size_t *, int);
CUfileError_t cuFileSetStatsLevel(int);
CUfileError_t cuFileGetStatsLevel(int *);
CUfileError_t cuFileStatsStart(void);
CUfileError_t cuFileStatsStop(void);
CUfileError_t cuFileStatsReset(void);
CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t *);
CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t *);
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t *);
CUfileError_t cuFileGetBARSizeInKB(int, size_t *);
CUfileError_t cuFileExportPCIeTopology(const char *);
CUfileError_t cuFileDriverGetP2PFlags(int, unsigned *);
CUfileError_t cuFileDriverSetP2PFlags(int, unsigned);

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                           \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s, line %d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

static inline CUfileDescr_t of_descriptor(int fd)
{
    return (CUfileDescr_t){.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd};
}

#endif
