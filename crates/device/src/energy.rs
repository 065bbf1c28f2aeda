//! The energy that a device uses.

use crate::backend::RawEnergyMeter;
use crate::{Device, Result};

impl Device {
    /// The device's energy counter ([`crate::Capabilities::energy`]).
    pub fn energy_meter(&self) -> Result<EnergyMeter> {
        let raw = self.backend().energy_meter().map_err(|error| self.name(error))?;
        Ok(EnergyMeter { device: self.clone(), raw })
    }
}

/// Reads the energy that a device uses: of the whole device, whichever process it works for.
#[derive(Debug)]
pub struct EnergyMeter {
    device: Device,
    raw: Box<dyn RawEnergyMeter>,
}

impl EnergyMeter {
    /// Energy used since the driver was loaded, in joules: the difference of two readings is what
    /// was used between them. [`crate::ErrorKind::Unsupported`] on a device that does not count
    /// it; there [`EnergyMeter::watts`] can be sampled.
    pub fn joules(&self) -> Result<f64> {
        self.raw.joules().map_err(|error| self.device.name(error))
    }

    /// Power at present, in watts, over whatever time the device averages.
    pub fn watts(&self) -> Result<f64> {
        self.raw.watts().map_err(|error| self.device.name(error))
    }
}
