//! A GPU that a kernel's fault takes along: what the driver's errors mean, and what survives.

use crate::support::{PAGE, Program, World, folder, host, options};
use bifolio_cache::Mode;
use bifolio_device::{
    BackendKind, Device, DeviceChoice, DevicePtr, ErrorKind, KernelArg, ModuleSource, discover, open,
};
use bifolio_testing::skip;
use std::process::Command;

const FOLDER: &str = "BIFOLIO_TEST_LOST_GPU";

/// Stores where nothing is.
const MODULE: ModuleSource = ModuleSource {
    name: "astray",
    source: "extern \"C\" __global__ void astray(unsigned *place) { *place = 1; }",
    headers: &[],
    kernels: &[("astray", |_| {})],
};

/// GPUs that can hold cached files.
fn gpus() -> Vec<Device> {
    let found = discover().into_iter().flat_map(|report| report.devices);
    let is_one = |info: &bifolio_device::DeviceInfo| {
        info.id.backend == BackendKind::Cuda && info.capabilities.virtual_memory.is_yes()
    };
    found.filter(is_one).map(|info| open(DeviceChoice::Exactly(info.id)).unwrap()).collect()
}

/// In a process of its own, as the context does not come back.
#[test]
fn what_a_kernel_that_faults_leaves_of_others_is_there() {
    if gpus().is_empty() {
        skip("there is no GPU with virtual memory management here that a kernel could take along");
        return;
    }
    let folder = folder();
    std::fs::write(folder.path().join("data"), vec![0; PAGE as usize]).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["lost_gpu::the_process_with_the_kernel", "--exact", "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read(folder.path().join("data")).unwrap()[10..13], [1, 0, 3]);
}

#[test]
fn the_process_with_the_kernel() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    // Another GPU's context may go with the first one's, as two of H200s do that reach each other's memory.
    let mut all = gpus();
    let others = all.split_off(1);
    let devices = [all.remove(0), host(0)];
    let world = World::in_folder(&devices, options(PAGE, 16, Mode::Lazy), folder.as_ref());
    let file = world.open();
    let [mut gone, mut left] = [0, 1].map(|number| Program::on(&world, &file, number));
    gone.mapping.acquire(0..PAGE).unwrap();
    gone.store(10, &[1]);
    gone.mapping.release(0..PAGE).unwrap();
    // What the other has seen stays, and what only the first has released goes.
    left.mapping.acquire(0..PAGE).unwrap();
    left.mapping.release(0..PAGE).unwrap();
    gone.mapping.acquire(0..PAGE).unwrap();
    gone.store(11, &[2]);
    gone.mapping.release(0..PAGE).unwrap();

    let (module, stream) = (devices[0].load_module(&MODULE).unwrap(), devices[0].create_stream().unwrap());
    let nowhere = [KernelArg::Buffer(DevicePtr(4096))];
    // SAFETY: it is not, which is what is tried; nothing but the context of this process comes to harm.
    unsafe { stream.launch(&module, "astray", 1, 1, &nowhere) }.unwrap();
    assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::Lost);
    assert!(devices[0].loss().is_some() && devices[1].loss().is_none());
    for other in others {
        println!("{} after that: {:?}", other.id(), other.loss());
    }

    left.mapping.acquire(0..PAGE).unwrap();
    left.store(12, &[3]);
    left.mapping.release(0..PAGE).unwrap();
    assert_eq!(left.load(10, 3), [1, 0, 3]);
    let error = gone.mapping.release(0..PAGE).err().map_or_else(String::new, |error| error.to_string());
    assert!(error.contains("not acquired"), "{error}");
    let error = gone.mapping.acquire(0..PAGE).unwrap_err().to_string();
    assert!(error.contains("is lost") && error.contains("bytes 0 to 4096 (1 page)"), "{error}");
    let error = file.sync().unwrap_err().to_string();
    assert!(error.contains("is lost") && error.contains("write it again"), "{error}");
    file.sync().unwrap();
    gone.mapping.close().unwrap();
    left.mapping.close().unwrap();
    drop((gone, left));
    file.close().unwrap();
}
