//! TCP connections: what they have seen, and sequence numbers that moved.
//!
//! Whoever makes a segment longer or shorter moves all that follows it in its direction: sequence numbers from there on,
//! and acknowledgements that come back.

use super::flows::Flow;
use crate::headers::checksum::{self, Sum};
use crate::headers::{Ip, Tcp, TcpMut, ip, tcp};

/// A direction was ended: bit 0 for packets, bit 1 for replies.
const DONE: u8 = 1;
/// A direction carried data: bit 2, bit 3.
const DATA: u8 = 4;
/// Both.
const BOTH: u8 = 3;

/// Steps that are remembered for a direction; older ones count as passed.
const STEPS_MAX: usize = 32;
/// A step that is so far behind counts as passed: half of what can be told from the future.
const PASSED: u32 = 1 << 30;

/// How the sequence numbers of both directions moved.
#[derive(Debug, Default)]
pub struct Deltas {
    sides: [Side; 2],
}

/// How those of one direction moved: before all steps, and from each step on.
#[derive(Debug, Default)]
struct Side {
    base: i32,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    from: u32,
    delta: i32,
}

/// Whether a sequence number is not before another one.
fn is_from(sequence: u32, from: u32) -> bool {
    sequence.wrapping_sub(from) < 1 << 31
}

impl Side {
    fn delta(&self, applies: impl Fn(&Step) -> bool) -> u32 {
        let step = self.steps.iter().rev().find(|step| applies(step));
        step.map_or(self.base, |step| step.delta) as u32
    }

    fn pass(&mut self, sequence: u32) {
        let gone = |step: &Step| is_from(sequence, step.from.wrapping_add(PASSED));
        let passed =
            self.steps.iter().take_while(|step| gone(step)).count().max(self.steps.len().saturating_sub(STEPS_MAX));
        if let Some(step) = self.steps.drain(..passed).next_back() {
            self.base = step.delta;
        }
    }

    fn is_moved(&self) -> bool {
        self.base != 0 || !self.steps.is_empty()
    }
}

impl Deltas {
    /// From the sequence number `from` on, a direction is longer by `change` bytes than it was so far. A second change at
    /// the same place takes the place of the first: it is the same segment, sent again. False where a later place is
    /// known, as changes come in order.
    pub fn update(&mut self, reply: bool, from: u32, change: i32) -> bool {
        let side = &mut self.sides[usize::from(reply)];
        match side.steps.last() {
            Some(last) if last.from == from => {
                side.steps.pop();
            }
            Some(last) if !is_from(from, last.from) => return false,
            _ => {}
        }
        let before = side.steps.last().map_or(side.base, |step| step.delta);
        side.steps.push(Step { from, delta: before.wrapping_add(change) });
        side.pass(from);
        true
    }

    /// The latest change of a direction, in bytes.
    pub fn last(&self, reply: bool) -> i32 {
        let side = &self.sides[usize::from(reply)];
        side.steps.last().map_or(side.base, |step| step.delta)
    }

    /// What a sequence number of a direction becomes.
    pub fn sequence(&self, reply: bool, sequence: u32) -> u32 {
        sequence.wrapping_add(self.sides[usize::from(reply)].delta(|step| is_from(sequence, step.from)))
    }

    /// What an acknowledgement of a direction becomes, which is about the other direction.
    pub fn acknowledgement(&self, reply: bool, acknowledged: u32) -> u32 {
        let before = |step: &Step| acknowledged.wrapping_sub(step.delta as u32);
        let delta = self.sides[usize::from(!reply)].delta(|step| is_from(before(step), step.from));
        acknowledged.wrapping_sub(delta)
    }

    /// Changes the numbers of a segment, its checksum with them.
    pub fn apply(&mut self, segment: &mut [u8], reply: bool) {
        let Some(tcp) = Tcp::new(segment).filter(|tcp| tcp.header_len() >= tcp::LEN) else { return };
        let (old, old_ack, len) = (tcp.sequence(), tcp.acknowledgement(), tcp.header_len());
        let mut sum = tcp.checksum();
        if len > segment.len() {
            return;
        }
        self.sides[usize::from(reply)].pass(old);
        let (mut new, mut new_ack) = (old, old_ack);
        if self.sides[usize::from(reply)].is_moved() {
            new = self.sequence(reply, old);
        }
        if self.sides[usize::from(!reply)].is_moved() {
            new_ack = self.acknowledgement(reply, old_ack);
            sum = self.apply_sack(&mut segment[tcp::LEN..len], reply, sum);
        }
        let Some(mut tcp) = TcpMut::new(segment) else { return };
        for (from, to) in [(old, new), (old_ack, new_ack)] {
            sum = if from == to { sum } else { checksum::adjust32(sum, from, to) };
        }
        tcp.set_sequence(new);
        tcp.set_acknowledgement(new_ack);
        tcp.set_checksum(sum);
    }

    /// Changes selective acknowledgements; what the checksum becomes.
    fn apply_sack(&self, options: &mut [u8], reply: bool, sum: u16) -> u16 {
        let before = Sum::default().with(options);
        let sacks: Vec<_> = crate::headers::options::Options::new(options)
            .map_while(Result::ok)
            .filter(|option| option.kind() == tcp::OPT_SACK && option.bytes.len() % 8 == 2)
            .map(|option| option.offset + 2..option.offset + option.bytes.len())
            .collect();
        if sacks.is_empty() {
            return sum;
        }
        for edge in sacks.into_iter().flat_map(|range| range.step_by(4)) {
            if let Some(bytes) = options[edge..].first_chunk_mut::<4>() {
                *bytes = self.acknowledgement(reply, u32::from_be_bytes(*bytes)).to_be_bytes();
            }
        }
        checksum::adjust16(sum, before.folded(), Sum::default().with(options).folded())
    }
}

/// Moves the sequence numbers of a TCP packet, which begins with an IPv4 header whose lengths are true.
pub fn apply_sequence(packet: &mut [u8], flow: &mut Flow, reply: bool) {
    if flow.deltas().is_none() {
        return;
    }
    let Some(ip) = Ip::new(packet).filter(|ip| ip.is_first_fragment() && ip.header_len() >= ip::LEN) else { return };
    let (begin, end) = (ip.header_len(), usize::from(ip.total_len()).min(packet.len()));
    if let Some(segment) = packet.get_mut(begin..end) {
        flow.deltas_mut().apply(segment, reply);
    }
}

impl Flow {
    /// Notes what a TCP packet says about the state of its connection.
    pub fn track_tcp(&mut self, packet: &[u8], reply: bool) {
        let Some((ip, tcp)) = Ip::new(packet).and_then(|ip| Some((ip, Tcp::new(ip.payload())?))) else { return };
        let side = u8::from(reply);
        let has_data = ip.header_len() + tcp.header_len() < usize::from(ip.total_len());
        if tcp.has(tcp::RST) {
            self.state |= BOTH * DONE;
        } else if tcp.has(tcp::FIN) {
            self.state |= DONE << side;
        } else if tcp.has(tcp::SYN) || has_data {
            self.state &= !(DONE << side);
        }
        if has_data {
            self.state |= DATA << side;
        }
    }

    /// Whether both directions of the TCP connection were ended.
    pub fn is_done(&self) -> bool {
        self.state & (BOTH * DONE) == BOTH * DONE
    }

    /// Whether both directions of the TCP connection carried data.
    pub fn has_data(&self) -> bool {
        self.state & (BOTH * DATA) == BOTH * DATA
    }

    /// Counts a packet of a flow that is not TCP.
    pub fn track_packets(&mut self, reply: bool) {
        // Bit 0: there were replies. From bit 1 on: packets, up to 3.
        self.state |= u8::from(reply);
        self.state += if self.state < 6 { 2 } else { 0 };
    }

    /// Whether the flow had three packets and a reply: not a question and its answer.
    pub fn is_streaming(&self) -> bool {
        self.state > 6
    }
}

#[cfg(test)]
mod tests {
    use bifolio_testing::seed;

    use super::*;

    #[test]
    fn numbers_move_from_each_step_on() {
        let mut deltas = Deltas::default();
        assert!(deltas.update(false, 100, 5));
        assert!(deltas.update(false, 200, 9));
        assert!(deltas.update(false, 200, 2), "sent again");
        assert!(!deltas.update(false, 150, 1), "out of order");
        assert_eq!([50, 99, 100, 199, 200, 300].map(|n| deltas.sequence(false, n)), [50, 99, 105, 204, 207, 307]);
        assert_eq!([50, 105, 204, 207, 307].map(|n| deltas.acknowledgement(true, n)), [50, 100, 199, 200, 300]);
        assert_eq!((deltas.sequence(true, 300), deltas.acknowledgement(false, 300)), (300, 300));
        assert_eq!((deltas.last(false), deltas.last(true)), (7, 0));
    }

    #[test]
    fn acknowledgements_undo_what_moved_sequences() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..200 {
            let mut deltas = Deltas::default();
            let mut at = rng.u32(..);
            for _ in 0..100 {
                at = at.wrapping_add(rng.u32(50..1 << 26));
                // Longer only: bytes that went have no number to come back from.
                assert!(deltas.update(false, at, rng.i32(0..50)));
                let steps = deltas.sides[0].steps.len();
                assert!((1..=STEPS_MAX).contains(&steps));
                let number = at.wrapping_sub(rng.u32(..1000)).wrapping_add(rng.u32(..1000));
                assert_eq!(deltas.acknowledgement(true, deltas.sequence(false, number)), number);
            }
        }
    }

    #[test]
    fn a_step_that_is_long_passed_counts_for_all() {
        let mut deltas = Deltas::default();
        deltas.update(false, 100, 5);
        let mut segment = [0; 20];
        for sequence in (0..8u32).map(|i| i.wrapping_mul(PASSED).wrapping_add(200)) {
            let mut tcp = TcpMut::new(&mut segment).unwrap();
            tcp.set_header_len(20);
            tcp.set_sequence(sequence);
            deltas.apply(&mut segment, false);
            assert_eq!(Tcp::new(&segment).unwrap().sequence(), sequence.wrapping_add(5));
        }
    }

    #[test]
    fn selective_acknowledgements_move_and_checksums_stay_right() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..2000 {
            let mut segment = bifolio_testing::noise(60, rng.u64(..));
            let mut tcp = TcpMut::new(&mut segment).unwrap();
            tcp.set_header_len(40);
            tcp.set_checksum(0);
            let nops = rng.usize(..3);
            segment[20..40].fill(0);
            segment[20..20 + nops].fill(1);
            segment[20 + nops..22 + nops].copy_from_slice(&[5, 10]);
            segment[22 + nops..26 + nops].copy_from_slice(&500u32.to_be_bytes());
            segment[26 + nops..30 + nops].copy_from_slice(&90u32.to_be_bytes());
            let sum = checksum::internet(&segment);
            TcpMut::new(&mut segment).unwrap().set_checksum(sum);
            let mut deltas = Deltas::default();
            deltas.update(false, 100, rng.i32(0..40));
            deltas.update(true, 100, rng.i32(0..40));
            deltas.apply(&mut segment, true);
            assert!(checksum::is_valid(&segment));
            let moved = deltas.acknowledgement(true, 500);
            assert_eq!(segment[22 + nops..26 + nops], moved.to_be_bytes());
            assert_eq!(segment[26 + nops..30 + nops], 90u32.to_be_bytes());
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut rng = fastrand::Rng::with_seed(seed());
        let mut deltas = Deltas::default();
        for _ in 0..20_000 {
            deltas.update(rng.bool(), rng.u32(..), rng.i32(..));
            let mut segment = bifolio_testing::noise(rng.usize(..70), rng.u64(..));
            deltas.apply(&mut segment, rng.bool());
        }
    }
}
