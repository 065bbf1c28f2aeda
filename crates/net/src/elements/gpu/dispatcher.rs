//! Dispatcher: sends packets to the output that an annotation says.
//!
//! `Dispatcher([ANNO])`: push, with one or more outputs.
//!
//! - ANNO: an annotation of a byte, such as elements of a path set (PAINT).
//!
//! A packet goes to the output with the annotation's number; where there is no such output, it is dropped and counted. Paths of
//! packets that part stay one batch on the device, and part here.
//!
//! Handlers: `drops`.

use crate::Packet;
use crate::args::{AnnoArg, Args, Failed};
use crate::element::{Batch, Element};
use crate::elements::classify::lanes::Lanes;
use crate::handler::Handlers;
use crate::packet::anno;
use crate::router::Cx;

/// The element.
pub(super) struct Dispatcher {
    anno: AnnoArg<1>,
    drops: u64,
    lanes: Lanes,
}

impl Default for Dispatcher {
    fn default() -> Self {
        Self { anno: AnnoArg(anno::PAINT), drops: 0, lanes: Lanes::default() }
    }
}

impl Element for Dispatcher {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("ANNO", &mut self.anno).finish()
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        let port = packet.anno_u8(self.anno.0).into();
        self.drops += u64::from(!cx.emit_checked(port, packet));
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        let (anno, outputs) = (self.anno.0, cx.outputs());
        let port = |packet: &Packet| usize::from(packet.anno_u8(anno));
        self.drops += batch.iter().filter(|packet| port(packet) >= outputs).count() as u64;
        self.lanes.send(cx, batch, |packet| Some(port(packet)));
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("drops", |dispatcher: &mut Self, _| dispatcher.drops);
    }
}
