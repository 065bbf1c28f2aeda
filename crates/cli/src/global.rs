//! What every command is told: devices, and how to answer.

use crate::exit::{Code, Failure};
use crate::output;
use bifolio_device::{Device, DeviceChoice, open};
use clap::Args as ClapArgs;
use serde::Serialize;

/// Choices for all commands.
#[derive(Debug, ClapArgs)]
pub struct Global {
    /// The device: auto takes the first CUDA device, else the first OpenCL GPU, else host. Several,
    /// separated by commas, where a command has a use for them.
    #[arg(
        long = "device",
        global = true,
        env = "BIFOLIO_DEVICE",
        default_value = "auto",
        value_delimiter = ',',
        value_name = "auto|host[:N]|cuda:N|opencl:N"
    )]
    pub devices: Vec<DeviceChoice>,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    /// The choice of a command that uses one device.
    pub fn device_choice(&self) -> Result<DeviceChoice, Failure> {
        match self.devices[..] {
            [only] => Ok(only),
            _ => Err(Failure::new(Code::Usage, "this command uses one device; name one with --device")),
        }
    }

    /// The device of a command that uses one.
    pub fn device(&self) -> Result<Device, Failure> {
        Ok(open(self.device_choice()?)?)
    }

    /// The devices of a command that uses several, each once.
    pub fn devices(&self) -> Result<Vec<Device>, Failure> {
        let devices = self.devices.iter().map(|choice| open(*choice)).collect::<Result<Vec<_>, _>>()?;
        let twice =
            devices.iter().enumerate().find(|(at, device)| devices[..*at].iter().any(|one| one.id() == device.id()));
        match twice {
            None => Ok(devices),
            Some((_, device)) => Err(Failure::new(Code::Usage, format!("{} is named twice in --device", device.id()))),
        }
    }

    /// Prints an answer, as JSON or as text.
    pub fn answer(&self, answer: &impl Serialize, describe: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { output::json(answer) } else { output::text(&describe()) }
    }
}
