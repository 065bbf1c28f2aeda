//! What a network device is, and how it is set up.

use super::sys;
use super::{Error, Kind, Result};
use crate::headers::ether::EtherAddress;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

/// A network device, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The kernel's number of it.
    pub index: u32,
    /// Its Ethernet address; zero where it has none.
    pub address: EtherAddress,
    /// The longest packet without its link header, in bytes.
    pub mtu: u32,
    /// The type of its link header: 1 Ethernet, 65534 none (`ARPHRD_*` of the kernel).
    pub hardware: u16,
}

impl Link {
    /// The device of this name, in the network namespace of the calling thread.
    pub fn named(name: &str) -> Result<Self> {
        Device::named(name).map(|device| device.link)
    }

    /// Whether packets begin with an Ethernet header.
    pub fn is_ethernet(&self) -> bool {
        matches!(self.hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
    }

    /// The name of its encapsulation, as pcap files and Click have it.
    pub fn encapsulation(&self) -> &'static str {
        match self.hardware {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => "ETHER",
            libc::ARPHRD_NONE | libc::ARPHRD_PPP => "IP",
            libc::ARPHRD_FDDI => "FDDI",
            libc::ARPHRD_IEEE80211 => "802_11",
            libc::ARPHRD_IEEE80211_PRISM => "PRISM",
            libc::ARPHRD_IEEE80211_RADIOTAP => "802_11_RADIO",
            _ => "?",
        }
    }
}

/// A device that is in use.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) link: Link,
    /// Of the device's network namespace, whichever thread asks.
    control: Control,
}

impl Device {
    /// The device of this name, in the network namespace of the calling thread.
    pub(super) fn named(name: &str) -> Result<Self> {
        let control = Control::new(name)?;
        let index = control.index()?;
        let (hardware, address) = control.hardware()?;
        let link = Link { name: name.to_owned(), index, address, mtu: control.mtu()?, hardware };
        Ok(Self { link, control })
    }

    pub(super) fn duplicate(&self) -> Result<Self> {
        let socket = self.control.socket.try_clone();
        let socket = socket.map_err(|source| self.control.error("use it once more", source))?;
        Ok(Self { link: self.link.clone(), control: Control { socket, name: self.control.name.clone() } })
    }

    /// Whether it still exists, whatever became of its name.
    pub(super) fn exists(&self) -> bool {
        let set = |argument: &mut libc::ifreq| argument.ifr_ifru.ifru_ifindex = self.link.index as i32;
        self.control.ask(libc::SIOCGIFNAME as _, "find its name", set).is_ok()
    }

    /// Its MTU now.
    pub(super) fn mtu(&self) -> Result<u32> {
        self.control.mtu()
    }

    /// The error that says that it has disappeared.
    pub(super) fn gone(&self) -> Error {
        Error::new(Kind::Gone, format!("device '{}' has disappeared", self.link.name))
    }

    /// How many receive queues it has; 1 where it does not say.
    pub(super) fn receive_queues(&self) -> u32 {
        self.control.receive_queues()
    }
}

/// Requests about one device by its name.
#[derive(Debug)]
pub(super) struct Control {
    socket: OwnedFd,
    name: String,
}

impl Control {
    pub(super) fn new(name: &str) -> Result<Self> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(|byte| byte == 0 || byte == b'/') {
            let text = format!("'{name}' is no name of a device: those have 1 to {} bytes", libc::IFNAMSIZ - 1);
            return Err(Error::new(Kind::Missing, text));
        }
        let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
            .map_err(|source| Error::system("cannot open a socket to ask for devices", source))?;
        Ok(Self { socket, name: name.to_owned() })
    }

    fn ask(&self, request: libc::c_ulong, what: &str, set: impl FnOnce(&mut libc::ifreq)) -> Result<libc::ifreq> {
        let mut argument = blank(&self.name);
        set(&mut argument);
        // SAFETY: all requests of this file take an `ifreq`, without a pointer or with one to a local of the caller's.
        match unsafe { sys::ioctl(self.socket.as_fd(), request, &mut argument) } {
            Ok(_) => Ok(argument),
            Err(source) => Err(self.error(what, source)),
        }
    }

    fn error(&self, what: &str, source: io::Error) -> Error {
        if source.raw_os_error() == Some(libc::ENODEV) {
            return Error::system(format!("no device '{}'", self.name), source);
        }
        Error::system(format!("{}: cannot {what}", self.name), source)
            .hint(Kind::Denied, "this needs CAP_NET_ADMIN, so run as root or give the program that capability")
    }

    fn index(&self) -> Result<u32> {
        let answer = self.ask(libc::SIOCGIFINDEX as _, "find its index", |_| ())?;
        // SAFETY: this request fills in the index.
        Ok(unsafe { answer.ifr_ifru.ifru_ifindex } as u32)
    }

    fn mtu(&self) -> Result<u32> {
        let answer = self.ask(libc::SIOCGIFMTU as _, "find its MTU", |_| ())?;
        // SAFETY: this request fills in the MTU.
        Ok(unsafe { answer.ifr_ifru.ifru_mtu }.max(0) as u32)
    }

    fn hardware(&self) -> Result<(u16, EtherAddress)> {
        let answer = self.ask(libc::SIOCGIFHWADDR as _, "find its address", |_| ())?;
        // SAFETY: this request fills in a hardware address.
        let found = unsafe { answer.ifr_ifru.ifru_hwaddr };
        let mut address = EtherAddress::default();
        for (to, from) in address.0.iter_mut().zip(found.sa_data) {
            *to = from as u8;
        }
        Ok((found.sa_family, address))
    }

    /// Sets the longest packet, in bytes.
    pub(super) fn set_mtu(&self, mtu: u32) -> Result<()> {
        let set = |argument: &mut libc::ifreq| argument.ifr_ifru.ifru_mtu = mtu as i32;
        self.ask(libc::SIOCSIFMTU as _, &format!("set its MTU to {mtu}"), set).map(drop)
    }

    /// Sets the Ethernet address.
    pub(super) fn set_address(&self, address: EtherAddress) -> Result<()> {
        let set = |argument: &mut libc::ifreq| {
            let mut data = [0; 14];
            for (to, from) in data.iter_mut().zip(address.0) {
                *to = from as libc::c_char;
            }
            argument.ifr_ifru.ifru_hwaddr = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: data };
        };
        self.ask(libc::SIOCSIFHWADDR as _, &format!("set its address to {address}"), set).map(drop)
    }

    /// Sets the IP address and the mask of its network.
    pub(super) fn set_ip(&self, address: Ipv4Addr, mask: Ipv4Addr) -> Result<()> {
        for (request, value, what) in
            [(libc::SIOCSIFADDR, address, "IP address"), (libc::SIOCSIFNETMASK, mask, "network mask")]
        {
            let set = |argument: &mut libc::ifreq| argument.ifr_ifru.ifru_addr = generic(value);
            self.ask(request as _, &format!("set its {what} to {value}"), set)?;
        }
        Ok(())
    }

    /// Brings it up, or down.
    pub(super) fn set_up(&self, up: bool) -> Result<()> {
        let what = if up { "bring it up" } else { "bring it down" };
        let answer = self.ask(libc::SIOCGIFFLAGS as _, what, |_| ())?;
        // SAFETY: this request fills in the flags.
        let flags = unsafe { answer.ifr_ifru.ifru_flags };
        let bit = libc::IFF_UP as libc::c_short;
        let flags = if up { flags | bit } else { flags & !bit };
        self.ask(libc::SIOCSIFFLAGS as _, what, |argument| argument.ifr_ifru.ifru_flags = flags).map(drop)
    }

    /// Makes `gateway`, a host of its network, the default route.
    pub(super) fn set_default_route(&self, gateway: Ipv4Addr) -> Result<()> {
        // SAFETY: numbers, and pointers that may be null.
        let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
        route.rt_dst = generic(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = generic(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = generic(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        // SAFETY: the request takes this structure; the name of a device in it is null, which is allowed.
        match unsafe { sys::ioctl(self.socket.as_fd(), libc::SIOCADDRT as _, &mut route) } {
            Ok(_) => Ok(()),
            Err(source) => Err(self.error(&format!("make {gateway} the default route"), source)),
        }
    }

    /// How many receive queues it has; 1 where it does not say.
    fn receive_queues(&self) -> u32 {
        /// `struct ethtool_channels`.
        #[repr(C)]
        #[derive(Default)]
        struct Channels {
            command: u32,
            most: [u32; 4],
            receive: u32,
            send: u32,
            other: u32,
            combined: u32,
        }
        const ETHTOOL_GCHANNELS: u32 = 0x3c;
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        let data = (&raw mut channels).cast();
        let set = |argument: &mut libc::ifreq| argument.ifr_ifru.ifru_data = data;
        match self.ask(libc::SIOCETHTOOL as _, "count its queues", set) {
            Ok(_) => (channels.receive + channels.combined).max(1),
            Err(_) => 1,
        }
    }
}

/// A request about the device of this name, which is short enough, otherwise zero.
pub(super) fn blank(name: &str) -> libc::ifreq {
    // SAFETY: an `ifreq` is an array of characters and a union of numbers, addresses and a pointer that may be null.
    let mut argument: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in argument.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    argument
}

/// An IP address in the general form of socket addresses.
fn generic(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_found_and_others_are_missing() {
        let link = Link::named("lo").unwrap();
        assert_eq!((link.encapsulation(), link.address), ("ETHER", EtherAddress::default()));
        assert!(Device::named("lo").unwrap().exists() && link.index > 0 && link.mtu > 1000);
        let error = Link::named("nosuchdevice").unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Missing, "no device 'nosuchdevice'"));
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for name in ["", "a/b", "a\0b", "abcdefghijklmnop"] {
            assert_eq!(Link::named(name).unwrap_err().kind(), Kind::Missing, "{name:?}");
        }
    }
}
