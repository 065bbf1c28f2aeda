//! What all tables can do.

use super::route::{NextHop, Route};

/// Why a table refuses a change. The table is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The prefix has this route.
    Exists(Route),
    /// The prefix has no route, or another one than asked for.
    Missing,
    /// The table has as many routes, gateways or nodes as it can hold.
    Full,
    /// The mask has a zero bit above a one bit, and this table takes prefixes only.
    NotAPrefix,
}

/// A table of routes. Of all routes whose prefix has an address, the one with the longest prefix counts.
pub trait Table: Send + Sync {
    /// Begins changes. They are seen by lookups when what this returns is dropped; changes by others wait until then.
    fn edit(&self) -> Box<dyn Edit + '_>;

    /// Where packets to `address` (its first byte in the highest bits) go.
    fn lookup(&self, address: u32) -> NextHop;

    /// [`lookup`](Self::lookup) for each of `addresses`, whose waits for memory overlap. `hops` is as long.
    fn lookup_batch(&self, addresses: &[u32], hops: &mut [NextHop]);
}

/// Changes of a table.
pub trait Edit {
    /// Adds a route, whose address has no bits outside of its mask. The prefix's route is replaced and returned where there
    /// is one and `replace` says so.
    fn insert(&mut self, route: Route, replace: bool) -> Result<Option<Route>, Refusal>;

    /// Removes and returns the route of a prefix; the gateway and the output must be the same unless the output is negative.
    fn remove(&mut self, route: &Route) -> Result<Route, Refusal>;

    /// Removes all routes.
    fn clear(&mut self);

    /// All routes, in the order in which the table is shown.
    fn routes(&self) -> Vec<Route>;
}
