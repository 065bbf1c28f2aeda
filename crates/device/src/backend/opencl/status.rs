//! What OpenCL's statuses mean: results, kinds of errors, and sentences.

use super::abi::{
    BUILD_PROGRAM_FAILURE, DEVICE_NOT_AVAILABLE, DEVICE_NOT_FOUND, EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST,
    INVALID_BUFFER_SIZE, INVALID_COMMAND_QUEUE, INVALID_CONTEXT, MEM_OBJECT_ALLOCATION_FAILURE, OUT_OF_HOST_MEMORY,
    OUT_OF_RESOURCES, PLATFORM_NOT_FOUND, SUCCESS, Status,
};
use crate::{Error, ErrorKind, Result};
use std::fmt::Arguments;

/// Turns a status into a result; `doing` names the operation and costs nothing on success.
pub(super) fn check(status: Status, doing: Arguments<'_>) -> Result<()> {
    if status == SUCCESS { Ok(()) } else { Err(failure(status, doing)) }
}

/// The error for a status other than success.
pub(super) fn failure(status: Status, doing: Arguments<'_>) -> Error {
    Error::new(kind(status), format!("{doing} failed: {}", describe(status)))
}

/// Turns the status of a command that has ended, or of waiting for it, into a result. `CL_OUT_OF_RESOURCES` is how drivers
/// report a fault in a kernel, which takes the context along; of a call that enqueues or allocates it may mean what it
/// says.
pub(super) fn check_ended(status: Status, doing: Arguments<'_>) -> Result<()> {
    match status {
        OUT_OF_RESOURCES => Err(Error::new(ErrorKind::Lost, format!("{doing} failed: {}", describe(status)))),
        _ => check(status, doing),
    }
}

fn kind(status: Status) -> ErrorKind {
    match status {
        // Contexts and queues are ours, and live: it is the driver who has ended them, after such a fault.
        DEVICE_NOT_AVAILABLE | INVALID_CONTEXT | INVALID_COMMAND_QUEUE => ErrorKind::Lost,
        MEM_OBJECT_ALLOCATION_FAILURE | OUT_OF_HOST_MEMORY | INVALID_BUFFER_SIZE => ErrorKind::OutOfMemory,
        BUILD_PROGRAM_FAILURE | -15 | -3 | -46..=-42 => ErrorKind::Kernel,
        DEVICE_NOT_FOUND | PLATFORM_NOT_FOUND => ErrorKind::Missing,
        -38..=-30 | -56..=-47 | -63 => ErrorKind::BadArgument,
        _ => ErrorKind::Execution,
    }
}

/// The status by its name in the header, and what it means where the name does not say it.
pub(super) fn describe(status: Status) -> String {
    let name = match status {
        DEVICE_NOT_FOUND => "CL_DEVICE_NOT_FOUND",
        DEVICE_NOT_AVAILABLE => "CL_DEVICE_NOT_AVAILABLE",
        -3 => "CL_COMPILER_NOT_AVAILABLE",
        MEM_OBJECT_ALLOCATION_FAILURE => "CL_MEM_OBJECT_ALLOCATION_FAILURE",
        OUT_OF_RESOURCES => "CL_OUT_OF_RESOURCES (often a fault or a time-out in a kernel)",
        OUT_OF_HOST_MEMORY => "CL_OUT_OF_HOST_MEMORY",
        -8 => "CL_MEM_COPY_OVERLAP",
        BUILD_PROGRAM_FAILURE => "CL_BUILD_PROGRAM_FAILURE",
        -12 => "CL_MAP_FAILURE",
        -13 => "CL_MISALIGNED_SUB_BUFFER_OFFSET",
        EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST => {
            "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST (work that was waited for failed)"
        }
        -15 => "CL_COMPILE_PROGRAM_FAILURE",
        -30 => "CL_INVALID_VALUE",
        INVALID_CONTEXT => "CL_INVALID_CONTEXT",
        INVALID_COMMAND_QUEUE => "CL_INVALID_COMMAND_QUEUE",
        -38 => "CL_INVALID_MEM_OBJECT",
        -42 => "CL_INVALID_BINARY",
        -43 => "CL_INVALID_BUILD_OPTIONS",
        -45 => "CL_INVALID_PROGRAM_EXECUTABLE",
        -46 => "CL_INVALID_KERNEL_NAME",
        -48 => "CL_INVALID_KERNEL",
        -49 => "CL_INVALID_ARG_INDEX",
        -50 => "CL_INVALID_ARG_VALUE",
        -51 => "CL_INVALID_ARG_SIZE (the argument's size is not the parameter's)",
        -52 => "CL_INVALID_KERNEL_ARGS (an argument is missing)",
        -54 => "CL_INVALID_WORK_GROUP_SIZE (more threads a group than the kernel allows on this device)",
        -55 => "CL_INVALID_WORK_ITEM_SIZE (more threads a group than the device has)",
        INVALID_BUFFER_SIZE => "CL_INVALID_BUFFER_SIZE (larger than the device gives in one allocation)",
        -63 => "CL_INVALID_GLOBAL_WORK_SIZE",
        PLATFORM_NOT_FOUND => "CL_PLATFORM_NOT_FOUND_KHR",
        _ => return format!("OpenCL error {status}"),
    };
    name.to_owned()
}

/// Something of another device.
pub(super) fn foreign(what: &str) -> Error {
    Error::new(ErrorKind::BadArgument, format!("the {what} belongs to another device"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_that_callers_act_on_have_their_own_kind() {
        assert_eq!(kind(MEM_OBJECT_ALLOCATION_FAILURE), ErrorKind::OutOfMemory);
        assert_eq!(kind(BUILD_PROGRAM_FAILURE), ErrorKind::Kernel);
        assert_eq!(kind(-51), ErrorKind::BadArgument);
    }

    #[test]
    fn a_device_that_is_gone_is_told_from_a_request_that_failed() {
        for status in [DEVICE_NOT_AVAILABLE, INVALID_CONTEXT, INVALID_COMMAND_QUEUE] {
            assert_eq!(kind(status), ErrorKind::Lost, "{status}");
        }
        assert_eq!(kind(OUT_OF_RESOURCES), ErrorKind::Execution, "of what is enqueued");
        let ended = |status| check_ended(status, format_args!("work")).unwrap_err().kind();
        assert_eq!(ended(OUT_OF_RESOURCES), ErrorKind::Lost);
        for status in [MEM_OBJECT_ALLOCATION_FAILURE, OUT_OF_HOST_MEMORY, -30, -38, -51, -54] {
            assert_ne!(ended(status), ErrorKind::Lost, "{status}");
        }
    }
}
