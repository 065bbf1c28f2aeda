//! Routes in the order in which they are shown: each in a slot; what was removed last leaves the slot that is filled next.

use super::route::Route;

#[derive(Debug, Default)]
pub(super) struct Slots {
    routes: Vec<Option<Route>>,
    free: Vec<u32>,
}

impl Slots {
    pub(super) fn add(&mut self, route: Route) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.routes[slot as usize] = Some(route);
            return slot;
        }
        self.routes.push(Some(route));
        self.routes.len() as u32 - 1
    }

    pub(super) fn get(&self, slot: u32) -> Option<Route> {
        self.routes.get(slot as usize).copied().flatten()
    }

    pub(super) fn replace(&mut self, slot: u32, route: Route) {
        self.routes[slot as usize] = Some(route);
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.routes[slot as usize] = None;
        self.free.push(slot);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn routes(&self) -> Vec<Route> {
        self.routes.iter().flatten().copied().collect()
    }
}
