//! Flat values that were images or become images: written in NCHW order, as PyTorch flattens them.

use super::{ExportedValue, Exporter};
use crate::graph::NodeId;
use thalweg_core::Result;
use thalweg_core::file_order::channels_first;

pub fn inverse_permutation(order: &[u32]) -> Vec<u32> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(index, source)| inverse[*source as usize] = index as u32);
    inverse
}

impl Exporter<'_> {
    /// A flat value in the file order of node `like`.
    pub fn flat_in_order_of(&mut self, id: NodeId, like: NodeId) -> Result<String> {
        let wanted = self.orders.get(like).to_vec();
        let value = self.value(id)?;
        if value.order == wanted && !value.is_nchw {
            return Ok(value.name.clone());
        }
        let plain = self.in_memory_order(id)?;
        Ok(if wanted.is_empty() { plain } else { self.writer.gather_columns(&plain, &wanted) })
    }

    /// Records the ONNX value of a flat node, in the node's file order.
    pub fn set_flat(&mut self, id: NodeId, name: String) {
        self.set_flat_like(id, id, name);
    }

    /// Records the ONNX value of a flat node, in the file order of node `like`.
    pub fn set_flat_like(&mut self, id: NodeId, like: NodeId, name: String) {
        let order = self.orders.get(like).to_vec();
        self.values[id.0] = Some(ExportedValue { name, is_nchw: false, order });
    }

    /// `Reshape`; no data moves between an image and its flat form.
    pub fn write_reshape(&mut self, id: NodeId, read: NodeId, sizes: &[usize]) -> Result<()> {
        let from = self.graph.shape(read).sizes();
        let len = sizes.iter().product::<usize>() as i64;
        match (from, sizes) {
            (&[height, width, channels], [_])
                if *self.orders.get(id) == channels_first([height, width, channels])[..] =>
            {
                let image = self.nchw(read)?;
                let name = self.writer.reshape(&image, &[0, len]);
                self.set_flat(id, name);
            }
            ([_], &[height, width, channels]) => {
                let name = self.nchw_of_flat(read, [height, width, channels])?;
                self.set_nchw(id, name);
            }
            _ => {
                let value = self.in_memory_order(read)?;
                let name = self.reshape_rows(&value, sizes);
                self.set_value(id, name);
            }
        }
        Ok(())
    }

    /// The NCHW image of a flat value.
    pub fn nchw_of_flat(&mut self, id: NodeId, [height, width, channels]: [usize; 3]) -> Result<String> {
        let value = self.value(id)?;
        if value.order == channels_first([height, width, channels]) {
            let name = value.name.clone();
            return Ok(self.writer.reshape(&name, &[0, channels, height, width].map(|size| size as i64)));
        }
        let flat = self.in_memory_order(id)?;
        let image = self.writer.reshape(&flat, &[0, height, width, channels].map(|size| size as i64));
        Ok(self.writer.transpose(&image, &[0, 3, 1, 2]))
    }
}
