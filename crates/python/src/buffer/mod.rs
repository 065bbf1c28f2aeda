//! What a Python object lends: an address, a length, the device that has it, and what keeps it there.
//!
//! ```text
//!   ask        asks an object                 lent     what it lends
//!   protocol   torch   cuda_array   dlpack    the ways to ask; exchange: PyTorch's table of C functions
//!   array      shapes, and what is refused    routers  of devices that memory was found on
//! ```
//!
//! Asked in this order: memory of ours; the buffer protocol (host memory: NumPy, bytearray, mmap, ...);
//! PyTorch tensors, by their table of C functions or their own methods, since building the dictionary of the
//! CUDA array interface takes them longer than a read of 4 KiB; the CUDA array interface (CuPy, Numba, ...);
//! DLPack. Whatever says no to the buffer protocol is asked on: CuPy's arrays have it for the sake of memory
//! that the CPU can reach, and raise an exception for all other.
//!
//! Memory of a GPU may still be in use by work that was enqueued before. What the exporter says about it is
//! respected: the stream of the CUDA array interface, PyTorch's current stream, and the default stream for
//! objects that name none. A read or write begins when that work is done; one that is ordered on a stream
//! of the caller's is enqueued behind it.

mod array;
mod ask;
mod cuda_array;
mod dlpack;
mod exchange;
mod lent;
mod protocol;
mod routers;
mod torch;

pub(crate) use dlpack::{ExportedMemory, Kept, Wanted, device_of as dlpack_device, export};
pub(crate) use lent::{DEFAULT_STREAM, Lent, Role};
pub(crate) use routers::adopt;
