//! ToHost: hands packets to the host by a TAP device.
//!
//! `ToHost(DEVNAME)`: one push input. Takes Ethernet frames, which the host receives by the device that a FromHost with
//! the same name has made. The host drops frames that are not for the device's Ethernet address, and packets for others
//! unless it forwards them.
//!
//! Handlers: `dev_name`, `drops` (packets that the host did not take), `count`.

use super::from_host::FromHost;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::ether;
use crate::nic::tun::Tun;
use crate::nic::{self, Nic};
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct ToHost {
    name: String,
    device: Option<Tun>,
    drops: u64,
    count: u64,
}

impl Element for ToHost {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("DEVNAME", &mut self.name).finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let own = cx.id();
        let sender = |host: &mut FromHost, _: &mut Cx<'_>| host.sender(&self.name);
        let others = (0..cx.router().len()).filter(|other| *other != own).collect::<Vec<_>>();
        let found = others.into_iter().find_map(|other| cx.with(other, sender).flatten());
        let Some(sender) = found else {
            return Err(format!("ToHost({}) requires an initialized FromHost with the same dev_name", self.name));
        };
        self.device = Some(sender.map_err(|error| error.line())?);
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        let Some(device) = &mut self.device else { return };
        let sent = if packet.len() < ether::LEN {
            Err("packet too small".to_owned())
        } else {
            device.send(&[packet.bytes()]).map_err(|error: nic::Error| error.line())
        };
        match sent {
            Ok(1) => self.count += 1,
            Ok(_) => self.drops += 1,
            Err(error) => {
                self.drops += 1;
                // A flood of such packets is no flood of lines.
                if self.drops == 1 {
                    cx.say(format_args!("{}: {error}", cx.declaration()));
                }
            }
        }
    }

    fn cleanup(&mut self, _: &mut Cx<'_>) {
        self.device = None;
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("dev_name", |host: &mut Self, _| host.name.clone());
        handlers.read("drops", |host: &mut Self, _| host.drops);
        handlers.read("count", |host: &mut Self, _| host.count);
    }
}
