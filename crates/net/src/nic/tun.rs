//! TUN and TAP devices: network devices whose other end is this process.
//!
//! What the host sends by such a device is received here, and what is sent here, the host receives. TUN carries IP
//! packets, TAP Ethernet frames. The device lives as long as its descriptor. Needs `CAP_NET_ADMIN`, unless the device
//! exists already and belongs to the user.

use super::link::{self, Control, Device, Link};
use super::{Error, Kind, Nic, Received, Result, Statistics, sys};
use crate::headers::ether::EtherAddress;
use std::fs::OpenOptions;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// How a device is set up.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Its name; empty: one that the kernel chooses (`tun0`, `tap0` …).
    pub name: String,
    /// Whether it carries Ethernet frames (TAP), not IP packets (TUN).
    pub ethernet: bool,
    /// The host's IP address at it, and the mask of its network.
    pub ip: Option<(Ipv4Addr, Ipv4Addr)>,
    /// A host of its network that becomes the host's default route.
    pub gateway: Option<Ipv4Addr>,
    /// The host's Ethernet address at it; nothing: one at random.
    pub address: Option<EtherAddress>,
    /// The longest packet, in bytes; nothing: the kernel's 1,500.
    pub mtu: Option<u32>,
}

/// Longest packet that is received, in bytes: what a device may have as its MTU, with a header.
const ROOM: usize = 65_536 + 22;

/// Our end of a TUN or TAP device.
#[derive(Debug)]
pub struct Tun {
    file: OwnedFd,
    device: Device,
    room: Vec<u8>,
    statistics: Statistics,
    told_gone: bool,
}

impl Tun {
    /// Makes a device, or takes one that exists under its name and has no other end; it is up afterwards where it has
    /// an IP address.
    pub fn open(options: &Options) -> Result<Self> {
        let path = "/dev/net/tun";
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(|source| Error::system(format!("cannot open {path}"), source))?;
        let file = OwnedFd::from(file);
        let name = attach(file.as_fd(), options)?;
        set_up(&name, options)?;
        Ok(Self::over(file, Device::named(&name)?))
    }

    /// The same end once more, for another owner.
    pub fn duplicate(&self) -> Result<Self> {
        let name = &self.device.link.name;
        let file = self.file.try_clone();
        let file = file.map_err(|source| Error::system(format!("{name}: cannot open it once more"), source))?;
        Ok(Self::over(file, self.device.duplicate()?))
    }

    /// The device.
    pub fn device(&self) -> &Link {
        &self.device.link
    }

    fn over(file: OwnedFd, device: Device) -> Self {
        Self { file, device, room: vec![0; ROOM], statistics: Statistics::default(), told_gone: false }
    }

    fn failure(&self, what: &str, source: io::Error) -> Error {
        if !self.device.exists() {
            return self.device.gone();
        }
        let refused = matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EMSGSIZE));
        let error = Error::system(format!("{}: cannot {what} a packet", self.device.link.name), source);
        if refused { error.of_kind(Kind::Refused) } else { error }
    }
}

/// Makes the descriptor the other end of a device, and returns its name.
fn attach(file: BorrowedFd<'_>, options: &Options) -> Result<String> {
    if !options.name.is_empty() {
        Control::new(&options.name)?;
    }
    let kind = if options.ethernet { libc::IFF_TAP } else { libc::IFF_TUN };
    let mut request = link::blank(&options.name);
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request takes this structure, without a pointer.
    unsafe { sys::ioctl(file, libc::TUNSETIFF as _, &mut request) }.map_err(|source| {
        let name = if options.name.is_empty() { "a device" } else { &options.name };
        Error::system(format!("cannot make {name}"), source)
            .hint(Kind::Denied, "this needs CAP_NET_ADMIN, so run as root or give the program that capability")
            .hint(Kind::Busy, "it has another end already")
            .hint(Kind::Unsupported, "a device of this name is of another kind")
    })?;
    Ok(request.ifr_name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect())
}

fn set_up(name: &str, options: &Options) -> Result<()> {
    let control = Control::new(name)?;
    if let Some(address) = options.address {
        control.set_address(address)?;
    }
    if let Some(mtu) = options.mtu {
        control.set_mtu(mtu)?;
    }
    if let Some((address, mask)) = options.ip {
        control.set_ip(address, mask)?;
        control.set_up(true)?;
    }
    match options.gateway {
        Some(gateway) => control.set_default_route(gateway),
        None => Ok(()),
    }
}

impl Nic for Tun {
    fn receive(&mut self, max: usize, take: &mut dyn FnMut(Received<'_>)) -> Result<usize> {
        for count in 0..max {
            match sys::read(self.file.as_fd(), &mut self.room) {
                Ok(Some(wire_len)) => {
                    self.statistics.received += 1;
                    let bytes = &self.room[..wire_len];
                    take(Received { bytes, wire_len, timestamp: None, destination: None });
                }
                Ok(None) => return Ok(count),
                Err(_) if count > 0 || self.told_gone => return Ok(count),
                Err(source) => {
                    let error = self.failure("receive", source);
                    self.told_gone = error.kind() == Kind::Gone;
                    return Err(error);
                }
            }
        }
        Ok(max)
    }

    fn send(&mut self, packets: &[&[u8]]) -> Result<usize> {
        for (count, packet) in packets.iter().enumerate() {
            match sys::write(self.file.as_fd(), packet) {
                Ok(Some(_)) => self.statistics.sent += 1,
                Ok(None) => return Ok(count),
                Err(_) if count > 0 => return Ok(count),
                Err(source) => return Err(self.failure("send", source)),
            }
        }
        Ok(packets.len())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn statistics(&mut self) -> Statistics {
        self.statistics
    }

    fn link(&self) -> Option<&Link> {
        Some(&self.device.link)
    }
}
