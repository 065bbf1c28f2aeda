//! A heap of flows by the time at which they end.
//!
//! Each packet moves the end of its flow into the future, and the heap is not touched for it: it keeps the time that it
//! knew, which is too early, and learns the true one when the flow comes to the front.

/// A heap of numbers of flows, by times in milliseconds. Where each one stands is told to its flow.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: Vec<(u64, u32)>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The earliest one, with its time.
    pub(super) fn front(&self) -> Option<(u64, u32)> {
        self.heap.first().copied()
    }

    /// Adds a flow. `placed` is told where each flow that moves stands now.
    pub(super) fn push(&mut self, time: u64, flow: u32, mut placed: impl FnMut(u32, u32)) {
        self.heap.push((time, flow));
        self.up(self.heap.len() - 1, &mut placed);
    }

    /// Takes out what stands at `place`.
    pub(super) fn remove(&mut self, place: u32, mut placed: impl FnMut(u32, u32)) {
        let place = place as usize;
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            let place = self.up(place, &mut placed);
            self.down(place, &mut placed);
        }
    }

    /// Changes the time of what stands at `place`.
    pub(super) fn change(&mut self, place: u32, time: u64, mut placed: impl FnMut(u32, u32)) {
        let place = place as usize;
        self.heap[place].0 = time;
        let place = self.up(place, &mut placed);
        self.down(place, &mut placed);
    }

    fn up(&mut self, mut place: usize, placed: &mut impl FnMut(u32, u32)) -> usize {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent] <= self.heap[place] {
                break;
            }
            self.heap.swap(parent, place);
            placed(self.heap[place].1, place as u32);
            place = parent;
        }
        placed(self.heap[place].1, place as u32);
        place
    }

    fn down(&mut self, mut place: usize, placed: &mut impl FnMut(u32, u32)) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            if left >= self.heap.len() {
                break;
            }
            let child = if right < self.heap.len() && self.heap[right] < self.heap[left] { right } else { left };
            if self.heap[place] <= self.heap[child] {
                break;
            }
            self.heap.swap(place, child);
            placed(self.heap[place].1, place as u32);
            place = child;
        }
        placed(self.heap[place].1, place as u32);
    }
}

#[cfg(test)]
mod tests {
    use bifolio_testing::seed;

    use super::*;

    #[test]
    fn the_front_is_the_earliest_and_places_are_told() {
        let mut rng = fastrand::Rng::with_seed(seed());
        let (mut queue, mut times, mut places) = (Queue::default(), vec![None; 50], vec![0; 50]);
        for _ in 0..20_000 {
            let (flow, time) = (rng.u32(..50), rng.u64(..100));
            let place = places[flow as usize];
            match times[flow as usize] {
                None => {
                    queue.push(time, flow, |flow, place| places[flow as usize] = place);
                    times[flow as usize] = Some(time);
                }
                Some(_) if rng.bool() => {
                    queue.remove(place, |flow, place| places[flow as usize] = place);
                    times[flow as usize] = None;
                }
                Some(_) => {
                    queue.change(place, time, |flow, place| places[flow as usize] = place);
                    times[flow as usize] = Some(time);
                }
            }
            let live = times.iter().enumerate().filter_map(|(flow, time)| time.map(|time| (time, flow as u32)));
            assert_eq!(queue.front(), live.clone().min());
            assert_eq!(queue.len(), live.clone().count());
            for (time, flow) in live {
                assert_eq!(queue.heap[places[flow as usize] as usize], (time, flow));
            }
        }
    }
}
