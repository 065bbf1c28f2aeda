//! How packets of a batch part.

use crate::Packet;
use crate::element::Batch;
use crate::router::Cx;

/// Packets of a batch on their ways to outputs.
#[derive(Default)]
pub(crate) struct Lanes {
    /// The output of each packet of the batch; others than there are: dropped.
    ports: Vec<usize>,
    /// Packets for each output.
    batches: Vec<Batch>,
}

impl Lanes {
    /// Sends each packet to the output that `choose` says; no output, or none that there is: it is dropped.
    pub(crate) fn send(
        &mut self,
        cx: &mut Cx<'_>,
        batch: &mut Batch,
        mut choose: impl FnMut(&Packet) -> Option<usize>,
    ) {
        let outputs = cx.outputs();
        let Some(first) = batch.first().map(|packet| choose(packet).unwrap_or(usize::MAX)) else { return };
        let is_first = |packet: &&Packet| choose(packet).unwrap_or(usize::MAX) == first;
        let alike = 1 + batch[1..].iter().take_while(is_first).count();
        if alike == batch.len() {
            if first < outputs {
                cx.emit_batch(first, batch);
            }
            return;
        }
        self.ports.clear();
        self.ports.resize(alike, first);
        self.ports.extend(batch[alike..].iter().map(|packet| choose(packet).unwrap_or(usize::MAX)));
        self.deal(cx, batch);
    }

    /// Sends each packet to its output; `ports` are as many as packets.
    pub(super) fn send_each(&mut self, cx: &mut Cx<'_>, batch: &mut Batch, ports: impl Iterator<Item = usize>) {
        self.ports.clear();
        self.ports.extend(ports);
        match self.ports.first() {
            Some(&first) if self.ports.iter().all(|&port| port == first) => {
                if first < cx.outputs() {
                    cx.emit_batch(first, batch);
                }
            }
            _ => self.deal(cx, batch),
        }
    }

    /// Sends each packet to the output that `ports` has for it.
    fn deal(&mut self, cx: &mut Cx<'_>, batch: &mut Batch) {
        let outputs = cx.outputs();
        self.batches.resize_with(outputs, Batch::new);
        for (port, packet) in self.ports.iter().zip(batch.drain(..)) {
            if let Some(lane) = self.batches.get_mut(*port) {
                lane.push(packet);
            }
        }
        for (port, lane) in self.batches.iter_mut().enumerate().filter(|(_, lane)| !lane.is_empty()) {
            cx.emit_batch(port, lane);
            // Where others wait at that input already, packets were moved there, and else the memory was exchanged.
            lane.clear();
        }
    }
}
