import sys, numpy as np
if not hasattr(np,'row_stack'): np.row_stack=np.vstack
sys.path[:0]=['src','tests']
from typing import Any, NamedTuple
from dyads.engine import CUDA, CPU, cuda as C
from dyads.engine import device as D
from dyads.engine.lanes import *
from dyads.engine.entity import descend, value_at, TO_THE_MODE, solve_upper
from dyads.model.streams import Key, Stream, fill_normal_pair, log_chance
from dyads.model.loss import Log
from dyads.model.objective import BlockPrior
from dyads.model.parameters import Role
from problems import *
class Probing(NamedTuple):
    sums: Any
    groups: Any
    part: Any
    X: Any
    item: Any
    scratch: Any
    key: Any
    out: Any
    def perform(self, n, sums, system, work):
        e=self.item[n]; team=sums.team; block=self.X[e]; x=system.x; mode=system.mode; d=system.d; M=system.M; out=self.out[n]
        first=lane(team); n_lanes=lanes(team); entry=self.part.entry
        for k in range(first,x.size,n_lanes): mode[k]=block[k]
        wait(team)
        start=descend(sums,e,mode,TO_THE_MODE,self.part,system,work)
        wait(team)
        if first==0:
            out[0]=start
            for k in range(x.size): out[10+k]=mode[k]; out[30+k]=M[k,k]; out[50+k]=system.gx[k]; out[70+k]=d[k]
        wait(team)
        for n in range(first,(d.size+1)//2,n_lanes): fill_normal_pair(self.key,e,0,n,system.z)
        wait(team)
        for k in range(first,d.size,n_lanes): x[k]=block[entry[k]]-mode[entry[k]]
        wait(team)
        gain=0.0
        for k in range(first,d.size,n_lanes):
            away=dot_from(k,M[k],x)
            d[k]=system.z[k]
            gain+=0.5*(d[k]*d[k]-away*away)
        gain=lane_sum(team,gain)
        if first==0:
            out[1]=gain
            for k in range(x.size): out[90+k]=system.z[k]; out[110+k]=x[k]
        solve_upper(team,M,d)
        for k in range(first,x.size,n_lanes): x[k]=mode[k]
        wait(team)
        for k in range(first,d.size,n_lanes): x[entry[k]]+=d[k]
        value=value_at(sums,e,x,self.part,False,system,work)
        if first==0:
            out[2]=value; out[3]=log_chance(self.key,e,0)
            for k in range(x.size): out[130+k]=x[k]
st=STRUCTURES[6]
dy=make_dyads(weighted=False); obj=make_objective(st,Log(),dy); theta=np.random.default_rng(1).normal(scale=.5,size=obj.layout.size)
dev=CUDA().bind(obj,dy)
u=dev.blocks_in_turn(theta)
size=obj.layout.sizes[0]
pr=BlockPrior(np.full(size,.1),2*np.eye(size)+.1,np.ones(size))
ps=u._piece_sums(Role.ROW,pr); ts=u._team_sums(Role.ROW,ps.prior)
part=ps.groups.parts(64)[0]
tp,room,n,scr=D._driven(ts,7,ps.groups,part)
out=D.to_device(np.zeros((7,200)))
task=Probing(ts,*D.to_device((ps.groups,tp)),ts.blocks.row,D.to_device(np.arange(7,dtype=np.int32)),scr,Key.of(0,Stream.BLOCKS,0,0),out)
D.kernel_of(room)[n,D.THREADS](task)
o=D.to_host(out)[0]
np.set_printoptions(precision=5,suppress=True,linewidth=160)
print('start gain value chance',o[:4])
for i,nm in enumerate(['mode','Mdiag','gx','d','z','away x','x']): print(nm,o[10+20*i:10+20*i+size])
